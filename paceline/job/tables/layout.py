"""``[layout]``: how the work is cut, or what the planner should look for."""

from __future__ import annotations

from typing import Literal

from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Duration


class LayoutTable(Table):
    """A layout changes speed and memory, never the mathematics."""

    use: str = key("auto", "the layout (interface §4), or auto: the planner's", form="layout", min_length=1)
    objective: Literal["time", "cost", "memory"] = key("time", "what the search makes small")
    deadline: Duration | None = key(None, "longest run that the search accepts", form="Duration", gt=0)
    budget_usd: float | None = key(
        None, "dearest run that the search accepts", form="float", unit="USD", gt=0
    )

"""``[restart]``: what happens when a rank dies or hangs."""

from __future__ import annotations

from paceline.job.interval import Interval as IntervalValue
from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Duration, Interval


class RestartTable(Table):
    """Inner time-outs are derived from ``hang_timeout`` and smaller."""

    max: int = key(3, "restarts in a row without progress", form="int", ge=0, le=2**31 - 1)
    hang_timeout: Duration = key(300.0, "longest silence of a rank", form="Duration", shown='"5min"', gt=0)
    compare_replicas: Interval = key(
        IntervalValue("steps", 100),
        "steps between two looks at whether ranks that hold the same weights hold the same bits",
        form="Interval",
        shown="100 steps",
    )
    elastic: bool = key(False, "go on with the ranks that are left", form="bool")

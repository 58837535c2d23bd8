"""``[eval]``: when the held-out set is read, and how much of it."""

from __future__ import annotations

from paceline.job.interval import Interval as IntervalValue
from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Interval, Strings


class EvalTable(Table):
    """The last evaluation uses everything."""

    every: Interval = key(IntervalValue("fraction", 0.1), "how often", form="Interval")
    limit: int = key(1024, "size of one evaluation", form="int", unit="sequences", ge=1, le=2**63 - 1)
    metrics: Strings = key(
        (),
        "own metrics, f(outputs, batch) -> (sum, count), summed over ranks",
        form="list of Ref",
        arrives="06",
    )

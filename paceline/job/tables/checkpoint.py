"""``[checkpoint]``: how often the state is saved, where, and how much of it is kept."""

from __future__ import annotations

from paceline.job.interval import NEVER
from paceline.job.interval import Interval as IntervalValue
from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Interval


class CheckpointTable(Table):
    """The last state of a run is always saved."""

    every: Interval = key(IntervalValue("seconds", 900.0), "how often", form="Interval")
    keep: int = key(2, "newest checkpoints that stay", form="int", ge=1, le=2**31 - 1)
    keep_every: Interval = key(NEVER, "checkpoints that stay for good", form="Interval")
    store: str = key(
        "checkpoints", "path or URL, relative to the run folder", form="path or URL", min_length=1
    )
    memory_copies: int = key(
        0, "copies in the memory of other hosts", form="int", arrives="04", ge=0, le=2**16
    )

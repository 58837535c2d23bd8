"""``[track]``: where the numbers go beside the run folder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from paceline.job.interval import Interval as IntervalValue
from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Interval, as_tuple

Trackers = Annotated[tuple[Literal["tensorboard", "wandb", "mlflow"], ...], BeforeValidator(as_tuple)]


class TrackTable(Table):
    """``metrics.jsonl`` has every step, whatever stands here."""

    to: Trackers = key((), "tensorboard, wandb, mlflow", form="list", arrives="05")
    project: str = key("paceline", "project at the tracker", form="str", arrives="05", min_length=1)
    every: Interval = key(
        IntervalValue("seconds", 10.0),
        "how often a console line is printed without a terminal",
        form="Interval",
    )

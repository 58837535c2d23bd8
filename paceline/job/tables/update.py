"""``[update]``: when gradients become weights; everything but every step is not in this version."""

from __future__ import annotations

from typing import Literal

from paceline.job.tables.table import Table, key

_COMPRESSIONS = {"int8": "07", "fp8": "07", "powersgd": "07", "": "07"}


class UpdateTable(Table):
    """Acts over the ``dp`` axis."""

    policy: Literal["every_step", "local_sgd", "diloco"] = key(
        "every_step", "when replicas agree", later={"local_sgd": "07", "diloco": "07"}
    )
    sync_every: int = key(500, "steps between two agreements", form="int", unit="steps", arrives="07", ge=1)
    outer_lr: float = key(0.7, "learning rate of the outer optimizer", form="float", arrives="07", gt=0)
    outer_momentum: float = key(
        0.9, "momentum of the outer optimizer", form="float", arrives="07", ge=0, lt=1
    )
    fragments: int = key(
        1, "parts of the model that agree in turn (streaming)", form="int", arrives="07", ge=1
    )
    compression: str = key(
        "none", "none, int8, fp8 or powersgd:R; changes the mathematics", form="str", later=_COMPRESSIONS
    )

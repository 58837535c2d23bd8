"""``[lora]``: low-rank adapters. Present means LoRA; not in this version."""

from __future__ import annotations

from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Strings


class LoraTable(Table):
    """Adapters beside frozen matrices."""

    rank: int | None = key(None, "rank of the adapters", form="int", shown="–", arrives="06", ge=1)
    alpha: float | None = key(None, "scale of the adapters", form="float", shown="2·rank", arrives="06", gt=0)
    dropout: float = key(0.0, "dropout before the adapter", form="float", arrives="06", ge=0, lt=1)
    targets: str | Strings = key("all-linear", "which matrices", form="str or list", arrives="06")

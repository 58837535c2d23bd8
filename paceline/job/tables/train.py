"""``[train]``: how long, how much a step, and in which arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Count, Duration


class TrainTable(Table):
    """One of steps, epochs, tokens; an optimizer step is "step" everywhere."""

    steps: Count | None = key(
        None, "length of the run", form="Count", unit="optimizer steps", shown="–", group="length", ge=1
    )
    epochs: float | None = key(
        None, "length of the run", form="float", unit="passes", shown="1", group="length", gt=0, le=1e9
    )
    tokens: Count | None = key(
        None, "length of the run", form="Count", unit="tokens", shown="–", group="length", ge=1
    )
    global_batch_size: Count = key(
        32, "per optimizer step over all devices", form="Count", unit="sequences", ge=1, le=2**31 - 1
    )
    precision: Literal["auto", "bf16", "fp32", "fp64", "fp8"] = key(
        "auto",
        "compute type; auto: bf16 where the device multiplies it faster than fp32, else fp32",
        later={"fp8": "later"},
    )
    reduce_precision: Literal["fp32", "bf16"] = key("fp32", "type of the gradient reduction")
    seed: int = key(0, "start of every random sequence", form="int", ge=0, le=2**63 - 1)
    deterministic: bool = key(
        False, "bit-identical on CUDA too, at a price that is printed (always so on a CPU)", form="bool"
    )
    max_time: Duration | None = key(
        None, "save and exit 50 after this long", form="Duration", shown="engine's limit − grace", gt=0
    )

    @model_validator(mode="before")
    @classmethod
    def _one_of(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and all(given.get(n) is None for n in ("steps", "epochs", "tokens")):
            return {**given, "epochs": 1.0}
        return given

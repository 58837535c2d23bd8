"""What a proof asks of ranks: JSON on the pipe, a typed value on either side. No torch: the launcher makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.plan.layout import Layout


@dataclass(frozen=True)
class Case:
    """One thing to run, as plain values.

    Attributes:
        name: of the case. job: its tables. widths: of the model, vocabulary included.
        layout: closed, with its micro-batch. precision: fp64, fp32 or bf16.
        rates: learning rate of each step; as many steps.
        held_out: held-out sequences to evaluate after the steps; 0 = none.
        leg: ``fp64`` (gradients and weights of each step, then the optimizer's state) or ``job`` (gradients only).
        touch: of its data, see ``compute/data/touched.Touch``.
        write, against: folder of the reference to write, or to compare with.
    """

    name: str
    job: Mapping[str, Any]
    widths: Mapping[str, Any]
    layout: str
    prepared: str
    precision: str
    rates: tuple[float, ...]
    held_out: int
    leg: str
    write: str = ""
    against: str = ""
    touch: Mapping[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        return Layout.parse(self.layout).world_size

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Case:
        """From JSON."""
        return cls(**{**values, "rates": tuple(values["rates"])})

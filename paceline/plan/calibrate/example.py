"""A case as the process sees it: where it lies among the others, what was predicted and what was measured."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from paceline.plan.calibrate.groups import engine, family, group
from paceline.plan.calibrate.sensitivity import sensitivity
from paceline.plan.published.cases import Case
from paceline.plan.speed.rates import NAMES

PLACES = ("width", "tokens", "length", "devices", "tensor", "pipeline", "experts", "recomputed")
"""The coordinates of :func:`place`."""


@dataclass(frozen=True)
class Example:
    """One run among those that are learnt from or predicted.

    Attributes:
        predicted: logarithm of the closed form's seconds. measured: of the measured seconds; None = not measured.
        shares: of the step by kind of work, in the order of ``rates.NAMES``. place: physical coordinates.
        hosts: that the run was on.
        vote: who published it. Only weighs errors in a table, and thins what is learnt from; never a feature.
    """

    id: str
    group: str
    engine: str
    family: str
    accelerator: str
    products: str
    predicted: float
    measured: float | None
    shares: tuple[float, ...]
    place: tuple[float, ...]
    vote: str
    hosts: int = 1

    @property
    def several_hosts(self) -> bool:
        return self.hosts > 1

    @property
    def excess(self) -> float:
        """Logarithm of measured over predicted."""
        assert self.measured is not None
        return self.measured - self.predicted


def example(case: Case) -> Example:
    """Price a case and place it."""
    predicted, shares = sensitivity(case)
    return Example(
        id=case.run.id,
        group=group(case),
        engine=engine(case.run.framework),
        family=family(case.run.framework),
        accelerator=case.cluster.accelerator.name,
        products=case.software.products or case.run.precision or case.work.precision,
        predicted=predicted,
        measured=math.log(case.measured_s) if case.measured_s else None,
        shares=shares,
        place=place(case),
        vote=case.run.source_id,
        hosts=case.cluster.hosts,
    )


def place(case: Case) -> tuple[float, ...]:
    """Where a case lies, in factors of two (sequence: four; devices: eight); distances are taken between places."""
    layout, widths = case.layout, case.work.widths
    tokens = (layout.mbs or 1) * case.work.sequence_length / layout.cp
    return (
        math.log2(widths.hidden_size / layout.tp),
        math.log2(tokens),
        math.log2(case.work.sequence_length) / 2,
        math.log2(layout.world_size) / 3,
        math.log2(layout.tp),
        math.log2(layout.pp),
        2.0 * (widths.num_experts > 0),
        {"none": 0.0, "selective": 1.0, "full": 2.0}[layout.recompute],
    )


_LISTS = {"shares": NAMES, "place": PLACES}
_NUMBERS = ("predicted", "measured", "hosts")
_WORDS = [field.name for field in fields(Example) if field.name not in _LISTS]


def write_examples(path: Path, examples: Iterable[Example]) -> None:
    """One row an example, numbers to six digits."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_WORDS, *NAMES, *PLACES])
        for one in examples:
            words = [getattr(one, name) for name in _WORDS]
            writer.writerow([_text(value) for value in [*words, *one.shares, *one.place]])


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_examples(path: Path) -> list[Example]:
    """As they were written."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_example(row) for row in csv.DictReader(file)]


def _example(row: dict[str, str]) -> Example:
    return Example(
        **{name: row[name] for name in _WORDS if name not in _NUMBERS},
        hosts=int(row["hosts"]),
        predicted=float(row["predicted"]),
        measured=float(row["measured"]) if row["measured"] else None,
        shares=tuple(float(row[name]) for name in NAMES),
        place=tuple(float(row[name]) for name in PLACES),
    )

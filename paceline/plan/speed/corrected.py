"""Speeds corrected by runs: what a finished run took in each part of its steps, over what had been priced for it.

A factor is of one part (compute, deliver, update, host, idle) and of one precision. It moves every layout alike, so
that it is right for what the machine does slower or faster than was measured or stood in a data sheet, and knows
nothing of what only one layout does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, pstdev
from typing import Any

from paceline.plan.chance import PARTS
from paceline.plan.model import Widths
from paceline.plan.speed.speeds import Group, Speeds

LEAST_SHARE = 0.01  # of the priced step: what a smaller part takes is not its rate
FARTHEST = 10.0  # a factor beyond this says that something else was wrong
LEAST_SIGMA = 0.05
ONE_RUN = 0.5  # of the uncertainty of a part, what one run leaves; several runs say it themselves


@dataclass(frozen=True)
class Correction:
    """What runs of one precision say.

    Attributes:
        factors: by part, measured over priced seconds; a part that is missing is as priced.
        spread: by part, standard deviation of the factors' logarithms over the runs; empty of one run.
        runs: their ids.
    """

    precision: str
    factors: Mapping[str, float]
    spread: Mapping[str, float]
    runs: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As in a measurement file and the ``[measured]`` table of a cluster file."""
        return {
            "precision": self.precision,
            "factors": dict(self.factors),
            "spread": dict(self.spread),
            "runs": list(self.runs),
        }

    def __str__(self) -> str:
        told = [f"{part} ×{factor:.2f}" for part, factor in self.factors.items()]
        return f"{', '.join(told) or 'nothing'} by {', '.join(self.runs)}"


def factors_of(priced: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """Measured over priced seconds of a step, of each part that is large enough to say something.

    A factor is a rate's. Where a part is priced at next to nothing and takes time (an optimizer over a few thousand
    parameters), that time is a fixed cost, which a larger job does not pay so many times over; and ten times the price
    is no rate of the same machine (:func:`left_out` says which). Both teach nothing.
    """
    return {part: factor for part, factor in _ratios(priced, measured).items() if _believed(factor)}


def left_out(priced: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, str]:
    """By part that took time and teaches nothing: why."""
    ratios, whole = _ratios(priced, measured), sum(priced.values())
    found = {}
    for part in PARTS:
        if measured.get(part, 0.0) <= 0 or _believed(ratios.get(part, math.inf)):
            continue
        if part in ratios:
            found[part] = f"{ratios[part]:.3g} times its price is no rate of this machine"
        else:
            found[part] = (
                f"priced at {priced.get(part, 0.0) / whole:.2%} of a step, too little to tell a rate"
            )
    return found


def _ratios(priced: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    whole = sum(priced.values())
    large = [part for part in PARTS if priced.get(part, 0.0) > LEAST_SHARE * whole]
    return {part: measured[part] / priced[part] for part in large if measured.get(part, 0.0) > 0}


def _believed(factor: float) -> bool:
    return 1 / FARTHEST <= factor <= FARTHEST


def joined(precision: str, several: Mapping[str, Mapping[str, float]]) -> Correction:
    """The factors of several runs (by id) as one: geometric means, and how far apart they are."""
    logs: dict[str, list[float]] = {}
    for factors in several.values():
        for part, factor in factors.items():
            logs.setdefault(part, []).append(math.log(factor))
    spread = {part: pstdev(values) for part, values in logs.items() if len(values) > 1}
    return Correction(
        precision, {part: math.exp(mean(values)) for part, values in logs.items()}, spread, tuple(several)
    )


def read(rows: object, precision: str) -> Correction | None:
    """The correction of a precision among the ``corrections`` of a measurement; None when there is none."""
    for row in rows if isinstance(rows, Sequence) and not isinstance(rows, str) else ():
        if isinstance(row, Mapping) and row.get("precision") == precision:
            factors = {part: float(row["factors"][part]) for part in PARTS if part in row.get("factors", {})}
            spread = {part: float(value) for part, value in row.get("spread", {}).items()}
            return Correction(precision, factors, spread, tuple(map(str, row.get("runs", ()))))
    return None


class CorrectedSpeeds:
    """The speeds of a machine, times what runs say."""

    def __init__(self, speeds: Speeds, correction: Correction) -> None:
        self.plain = speeds
        self.precision = speeds.precision
        self.overlaps = speeds.overlaps
        self.pods = speeds.pods
        self.base_bytes = speeds.base_bytes
        self.assumed = (*speeds.assumed, f"corrected: {correction}")
        self.measured = getattr(speeds, "measured", None)
        self.busy = bool(getattr(speeds, "busy", False))
        self._of = {part: correction.factors.get(part, 1.0) for part in PARTS}
        factors = speeds.factors
        self.factors = replace(
            factors, host=factors.host * self._of["host"], idle=factors.idle * self._waiting()
        )
        self.sigma: Mapping[str, float] = {
            **speeds.sigma,
            **{part: _sigma(speeds.sigma[part], correction, part) for part in correction.factors},
        }

    def peak_flops(self, world: int) -> float:
        return self.plain.peak_flops(world)

    def block_s(self, kind: Widths, sequence_length: int, mbs: float, world: int, tp: int = 1) -> float:
        return self._of["compute"] * self.plain.block_s(kind, sequence_length, mbs, world, tp)

    def outer_s(self, widths: Widths, sequence_length: int, mbs: float, world: int) -> float:
        return self._of["compute"] * self.plain.outer_s(widths, sequence_length, mbs, world)

    def optimizer_s(self, parameters: float, world: int) -> float:
        return self._of["update"] * self.plain.optimizer_s(parameters, world)

    def copy_s(self, size_bytes: float, world: int) -> float:
        return self._of["deliver"] * self.plain.copy_s(size_bytes, world)

    def collective_s(self, op: str, size_bytes: float, group: Group) -> float:
        return self._of["deliver"] * self.plain.collective_s(op, size_bytes, group)

    def _waiting(self) -> float:
        """Of a schedule's waiting, which is made of compute and grows with its factor already."""
        return self._of["idle"] / self._of["compute"] if self._of["idle"] != 1.0 else 1.0


def _sigma(before: float, correction: Correction, part: str) -> float:
    if part in correction.spread:
        return max(LEAST_SIGMA, min(before, correction.spread[part]))
    return max(LEAST_SIGMA, ONE_RUN * before)

"""How far off predictions of step time are: by source, one vote each, with the sign and with what intervals cover."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.plan.calibrate.posterior import quantile
from paceline.plan.score.scored import Scored

FULL = ("A", "B")
TRUSTED = ("exact", "rounded", "chart-label")
PRETRAINING = ("pretrain", "")


@dataclass(frozen=True)
class Errors:
    """Of several runs, as parts of the measured time.

    Attributes:
        median, p90: of the error's size. signed: median of the logarithm of predicted over measured.
        covered: part of the runs whose measured time lies in the 90 % interval.
        width: median of the interval's upper end over its lower one.
    """

    name: str
    runs: int
    median: float
    p90: float
    signed: float
    covered: float
    width: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def trusted(one: Scored) -> bool:
    """Whether a run is measured and says enough, and surely enough, to learn from it or to be judged by it.

    Blank columns of a user's own table count as trusted.
    """
    run = one.run
    return (
        one.example is not None
        and one.example.measured is not None
        and run.completeness in (*FULL, "")
        and run.quality in (*TRUSTED, "")
        and run.task in PRETRAINING
    )


def counts(one: Scored) -> bool:
    """Whether a prediction's error says something of the planner."""
    return one.predicted is not None and trusted(one)


def by_source(scored: Sequence[Scored]) -> list[Errors]:
    """One row a source, by name."""
    return _grouped(scored, lambda one: one.run.source_id or "(none)")


def by_group(scored: Sequence[Scored]) -> list[Errors]:
    """One row a group of (model shape, accelerator, host, program), in words."""
    return _grouped(scored, _group_words)


def _group_words(one: Scored) -> str:
    run = one.run
    model = run.model_name or f"{run.layers}×{run.hidden}"
    return f"{model} · {run.gpu_type} · {run.framework or 'program not stated'} · {one.example.group[:6]}"  # type: ignore[union-attr]


def _grouped(scored: Sequence[Scored], key: Callable[[Scored], str]) -> list[Errors]:
    found: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        if counts(one):
            found[key(one)].append(one)
    return [_errors(name, several, [1.0] * len(several)) for name, several in sorted(found.items())]


def overall(scored: Sequence[Scored]) -> Errors | None:
    """All that count, one vote a source however many runs it has; None when none does."""
    those = [one for one in scored if counts(one)]
    if not those:
        return None
    votes = Counter(one.run.source_id for one in those)
    return _errors("all, one vote a source", those, [1 / votes[one.run.source_id] for one in those])


def off(one: Scored) -> float:
    """Logarithm of predicted over measured."""
    assert one.predicted is not None
    assert one.example is not None
    assert one.example.measured is not None
    return math.log(one.predicted.mid) - one.example.measured


def worst(scored: Sequence[Scored], count: int = 5) -> list[Scored]:
    """The runs that are farthest off."""
    return sorted((one for one in scored if counts(one)), key=lambda one: -abs(off(one)))[:count]


def _errors(name: str, scored: Sequence[Scored], weights: Sequence[float]) -> Errors:
    logs = [off(one) for one in scored]
    sizes = [abs(math.exp(value) - 1) for value in logs]
    inside = [_inside(one) for one in scored]
    widths = [one.predicted.high / one.predicted.low for one in scored if one.predicted]
    return Errors(
        name=name,
        runs=len(scored),
        median=middle(sizes, weights),
        p90=quantile(sizes, weights, 0.9),
        signed=middle(logs, weights),
        covered=sum(w for w, yes in zip(weights, inside, strict=True) if yes) / sum(weights),
        width=middle(widths, weights),
    )


def middle(values: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted median; where a value ends exactly at half of the weight, the midpoint of it and the next."""
    below = quantile(values, weights, 0.5)
    above = -quantile([-value for value in values], weights, 0.5)
    return (below + above) / 2


def _inside(one: Scored) -> bool:
    assert one.predicted is not None
    assert one.example is not None
    assert one.example.measured is not None
    return one.predicted.low <= math.exp(one.example.measured) <= one.predicted.high

"""Whether the planner orders the layouts of one job as they were measured.

A contest is one model on one number of equal devices under one program at one batch and sequence, measured with at
least four layouts; runs of one layout are averaged. What the best predicted layout costs over the best measured one
is its regret. Predictions that tie share their ranks, and a tie for first place has the mean of its regrets.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from paceline.plan.score.errors import counts
from paceline.plan.score.scored import Scored

LEAST_LAYOUTS = 4
TIE = 1e-6
DRAWS = 2000
SEED = 0


@dataclass(frozen=True)
class Contest:
    """One group's layouts: Spearman's rank correlation and the regret of the first, both over averaged runs."""

    name: str
    hosts: int
    layouts: int
    spearman: float
    regret: float


@dataclass(frozen=True)
class Ranking:
    """Of several contests: means, the worst regret, and 90 % bootstrap intervals over contests."""

    contests: int
    spearman: float
    spearman_low: float
    spearman_high: float
    regret: float
    regret_low: float
    regret_high: float
    regret_max: float

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def contests(scored: Sequence[Scored]) -> list[Contest]:
    """All that the runs allow, by name."""
    found: dict[tuple[object, ...], dict[str, list[Scored]]] = defaultdict(lambda: defaultdict(list))
    for one in scored:
        if counts(one) and one.case is not None and one.example is not None:
            case = one.case
            key = (one.example.group, case.work.global_batch, case.work.sequence_length, _world(one))
            found[(*key, case.software.products, one.run.precision)][str(case.layout)].append(one)
    return [_contest(layouts) for layouts in found.values() if len(layouts) >= LEAST_LAYOUTS]


def _world(one: Scored) -> int:
    return one.case.layout.world_size if one.case else 0


def _contest(layouts: dict[str, list[Scored]]) -> Contest:
    first = next(iter(layouts.values()))[0]
    assert first.case is not None
    guessed = [fmean(one.predicted.mid for one in runs if one.predicted) for runs in layouts.values()]
    took = [
        fmean(
            math.exp(one.example.measured) for one in runs if one.example and one.example.measured is not None
        )
        for runs in layouts.values()
    ]
    run = first.run
    name = (
        f"{run.model_name or run.hidden} · {run.n_gpus} {run.gpu_type} · batch {first.case.work.global_batch}"
    )
    best = min(guessed)
    chosen = [t for g, t in zip(guessed, took, strict=True) if g <= best * (1 + TIE)]
    regret = fmean(chosen) / min(took) - 1
    return Contest(name, first.case.cluster.hosts, len(layouts), spearman(guessed, took), regret)


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation with averaged ranks; 0 where one side ties throughout."""
    x, y = ranks(a), ranks(b)
    mean_x, mean_y = fmean(x), fmean(y)
    both = sum((i - mean_x) * (j - mean_y) for i, j in zip(x, y, strict=True))
    size = math.sqrt(sum((i - mean_x) ** 2 for i in x) * sum((j - mean_y) ** 2 for j in y))
    return both / size if size else 0.0


def ranks(values: Sequence[float]) -> list[float]:
    """From 1; values within ``TIE`` of each other share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    start = 0
    for end in range(1, len(order) + 1):
        if end < len(order) and values[order[end]] <= values[order[end - 1]] * (1 + TIE):
            continue
        for number in order[start:end]:
            found[number] = (start + 1 + end) / 2
        start = end
    return found


def ranking(several: Sequence[Contest]) -> Ranking | None:
    """Means over contests; None without one."""
    if not several:
        return None
    draw = random.Random(SEED)
    drawn = [draw.choices(several, k=len(several)) for _ in range(DRAWS)]
    rho = sorted(fmean(one.spearman for one in sample) for sample in drawn)
    lost = sorted(fmean(one.regret for one in sample) for sample in drawn)
    low, high = int(0.05 * DRAWS), int(0.95 * DRAWS) - 1
    return Ranking(
        contests=len(several),
        spearman=fmean(one.spearman for one in several),
        spearman_low=rho[low],
        spearman_high=rho[high],
        regret=fmean(one.regret for one in several),
        regret_low=lost[low],
        regret_high=lost[high],
        regret_max=max(one.regret for one in several),
    )

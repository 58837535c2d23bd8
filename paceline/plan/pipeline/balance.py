"""Layers → stages: contiguous, the heaviest stage as light as it can be, embedding and head counted.

Costs are of any one unit, and may be zero. First the least possible weight of the heaviest stage is found (a search
over the weights that a stage can have), then among the cuts that reach it the most even one (least sum of squares,
by dynamic programming), and of those the one whose first stages hold more layers, as ``plan.layout.balanced`` does
for layers that are all alike. All of it is exact.

A stage between the first and the last has a layer at least, or it would only cost two transfers. The first may have
none, since it embeds, and the last, since it predicts; but with one stage all layers are its own.

What is balanced is stages, not ranks: with several stages on a rank (a V, interleaved) a rank has the sum of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


def split(
    costs_per_layer: Sequence[float], first_extra: float, last_extra: float, stages: int
) -> list[range]:
    """The layers of each stage.

    Args:
        costs_per_layer: of each layer, at least 0.
        first_extra: of the embedding. last_extra: of the head.
        stages: how many; the inner ones need a layer each.

    Raises:
        ValueError: fewer layers than inner stages, no stage, or a negative cost.
    """
    layers = len(costs_per_layer)
    if stages < 1 or layers < stages - 2:
        raise ValueError(
            f"{layers} layers cannot fill {stages} stages: each but the first and the last needs one"
        )
    if min((first_extra, last_extra, *costs_per_layer), default=0) < 0:
        raise ValueError("a cost is negative")
    weights = _Weights([0, *accumulate(costs_per_layer)], first_extra, last_extra, stages)
    candidates = weights.all()
    limit = candidates[bisect_left(candidates, True, key=weights.fit)]
    cuts = [0, *_most_even(weights, limit), layers]
    return [range(start, end) for start, end in pairwise(cuts)]


@dataclass(frozen=True)
class _Weights:
    """Of stages; ``before[i]`` is what the layers before layer ``i`` cost."""

    before: list[float]
    first: float
    last: float
    stages: int

    @property
    def layers(self) -> int:
        return len(self.before) - 1

    def of(self, stage: int, start: int, end: int) -> float:
        """The stage's weight when it holds the layers from ``start`` to ``end``."""
        extra = (self.first if stage == 0 else 0) + (self.last if stage == self.stages - 1 else 0)
        return self.before[end] - self.before[start] + extra

    def all(self) -> list[float]:
        """Every weight that any stage can have, in order."""
        runs = {end - start for i, start in enumerate(self.before) for end in self.before[i:]}
        kinds = {0, min(1, self.stages - 1), self.stages - 1}
        extras = {self.of(kind, 0, 0) for kind in kinds}
        return sorted({run + extra for run in runs for extra in extras})

    def fit(self, limit: float) -> bool:
        """Whether some cut has no heavier stage: each takes what it can, from the front. (That may leave inner
        stages without a layer; those before them can spare one, and only get lighter.)"""
        at = 0
        for stage in range(self.stages):
            start = at
            if self.of(stage, start, start) > limit:
                return False
            while at < self.layers and self.of(stage, start, at + 1) <= limit:
                at += 1
        return at == self.layers


def _most_even(weights: _Weights, limit: float) -> list[int]:
    """Where the stages but the first begin: least sum of squares with no stage above ``limit``."""
    best: dict[int, tuple[float, list[int]]] = {
        weights.layers: (0.0, [])
    }  # from a layer on → sum, further cuts
    for stage in reversed(range(weights.stages)):
        inner = 0 < stage < weights.stages - 1
        extra, before = weights.of(stage, 0, 0), weights.before
        found: dict[int, tuple[float, list[int]]] = {}
        for start in (0,) if stage == 0 else range(weights.layers + 1):
            for end in range(start + inner, weights.layers + 1):
                weight = before[end] - before[start] + extra
                if weight > limit:
                    break
                if end in best:
                    total = best[end][0] + weight**2
                    # of equal sums the longer stage: it is met later
                    if start not in found or total <= found[start][0]:
                        found[start] = (total, [end, *best[end][1]])
        best = found
    return best[0][1][:-1]

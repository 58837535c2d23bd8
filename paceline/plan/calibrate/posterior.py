"""Predictions after measured runs: a Gaussian process over the logarithm of measured over predicted."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.plan.calibrate.covariance import Scales, covariance
from paceline.plan.calibrate.example import Example
from paceline.plan.calibrate.regime import regime

if TYPE_CHECKING:
    from paceline.plan.calibrate.covariance import Matrix

NINETY = 1.6449
FEW = 30
"""A regime of so many runs is believed half."""


@dataclass(frozen=True)
class Predicted:
    """Seconds of a step: ``mid``, and the standard deviation of its logarithm."""

    mid: float
    deviation: float

    @property
    def low(self) -> float:
        """Of the 90 % interval."""
        return self.mid * math.exp(-NINETY * self.deviation)

    @property
    def high(self) -> float:
        return self.mid * math.exp(NINETY * self.deviation)


@dataclass
class Posterior:
    """What is known after measured runs; a case of a group is predicted without the runs of that group.

    Args:
        learnt: measured examples.
        anchors: of a case's own group so many others may be used, those that lie farthest apart; 0 = none.
        pool: further measured examples, which may be anchors and nothing else.
        stretch: by regime, what a deviation is multiplied with, so that nine in ten of held-out groups lie inside.
    """

    learnt: Sequence[Example]
    scales: Scales = field(default_factory=Scales)
    anchors: int = 0
    pool: Sequence[Example] = ()
    stretch: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.learnt = [one for one in self.learnt if one.measured is not None]
        ids = {one.id for one in self.learnt}
        more = [one for one in self.pool if one.measured is not None and one.id not in ids]
        self._known = [*self.learnt, *(more if self.anchors else [])]
        self._own: dict[str, list[int]] = defaultdict(list)
        for number, one in enumerate(self._known):
            self._own[one.group].append(number)
        self._between = covariance(self._known, self._known, self.scales) if self._known else None

    def predict(self, examples: Sequence[Example]) -> list[Predicted]:
        """Of each example, in order."""
        found: dict[int, Predicted] = {}
        for allowed, which in self._by_allowed(examples).items():
            several = self._from(allowed, [examples[i] for i in which])
            found.update(zip(which, several, strict=True))
        return [found[number] for number in range(len(examples))]

    def _by_allowed(self, examples: Sequence[Example]) -> dict[tuple[int, ...], list[int]]:
        """Numbers of known examples → the examples that may be predicted from just those."""
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        spread: dict[str, list[int]] = {}
        for number, one in enumerate(examples):
            if one.group not in spread:
                spread[one.group] = self._spread(self._own.get(one.group, []), self.anchors + 1)
            own = self._own.get(one.group, ())
            kept = [i for i in spread[one.group] if self._known[i].id != one.id][: self.anchors]
            others = set(range(len(self.learnt))).difference(own)
            found[tuple(sorted(others.union(kept)))].append(number)
        return found

    def _spread(self, own: Sequence[int], count: int) -> list[int]:
        """So many of a group's, each as far as can be from those before it."""
        chosen = list(own[:1])
        while chosen and len(chosen) < min(count, len(own)):
            rest = (i for i in own if i not in chosen)
            chosen.append(max(rest, key=lambda i: min(self._apart(i, j) for j in chosen)))
        return chosen

    def _apart(self, a: int, b: int) -> float:
        pairs = zip(self._known[a].place, self._known[b].place, strict=True)
        return sum((x - y) ** 2 for x, y in pairs)

    def _from(self, allowed: Sequence[int], examples: Sequence[Example]) -> list[Predicted]:
        import numpy as np

        noise = self.scales.noise**2
        variances = np.array([self._prior(one) for one in examples]) + noise
        means = np.zeros(len(examples))
        if allowed:
            assert self._between is not None
            known = self._between[np.ix_(allowed, allowed)] + noise * np.eye(len(allowed))
            learnt = [self._known[i] for i in allowed]
            across: Matrix = covariance(examples, learnt, self.scales)
            solved = np.linalg.solve(known, across.T)
            means = solved.T @ np.array([one.excess for one in learnt])
            variances = variances - (across * solved.T).sum(1)
        rows = zip(examples, means, variances, strict=True)
        return [self._predicted(one, float(mean), float(variance)) for one, mean, variance in rows]

    def _prior(self, one: Example) -> float:
        return float(covariance([one], [one], self.scales)[0, 0])

    def _predicted(self, one: Example, mean: float, variance: float) -> Predicted:
        deviation = math.sqrt(max(variance, self.scales.noise**2)) * self.stretch.get(regime(one), 1.0)
        return Predicted(math.exp(one.predicted + mean), deviation)


def stretches(examples: Sequence[Example], predicted: Iterable[Predicted]) -> dict[str, float]:
    """By regime: what the deviations of held-out predictions must be multiplied with to cover 90 %.

    One vote for each source; a regime of few runs keeps near 1.
    """
    rows: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for one, guess in zip(examples, predicted, strict=True):
        if one.measured is not None:
            off = abs(math.log(guess.mid) - one.measured) / guess.deviation
            rows[regime(one)].append((off, one.vote))
    return {name: _stretch(several) for name, several in sorted(rows.items())}


def _stretch(rows: Sequence[tuple[float, str]]) -> float:
    """Of one regime, from (errors in deviations, who published it)."""
    votes = Counter(vote for _, vote in rows)
    reached = quantile([off for off, _ in rows], [1 / votes[vote] for _, vote in rows], 0.9)
    trust = len(rows) / (len(rows) + FEW)
    return round(math.exp(trust * math.log(max(reached, 0.1) / NINETY)), 3)


def quantile(values: Sequence[float], weights: Sequence[float], part: float) -> float:
    """The smallest value at or below which lies that part of the weight."""
    left = part * sum(weights)
    for value, weight in sorted(zip(values, weights, strict=True)):
        left -= weight
        if left <= 1e-12:
            return value
    return max(values)

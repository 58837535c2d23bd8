"""Predictions after measured runs: a Gaussian process over the logarithm of measured over predicted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.plan.calibrate.covariance import Scales, covariance
from paceline.plan.calibrate.example import Example

if TYPE_CHECKING:
    from paceline.plan.calibrate.covariance import Matrix

NINETY = 1.6449


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


class Posterior:
    """What is known after ``learnt``; a case of a group is predicted without that group.

    Args:
        learnt: measured examples.
        anchors: of a case's own group so many others may be used, those that lie farthest apart; 0 = none.
    """

    def __init__(self, learnt: Sequence[Example], scales: Scales | None = None, anchors: int = 0) -> None:
        self.learnt = [one for one in learnt if one.measured is not None]
        self.scales = scales or Scales()
        self.anchors = anchors
        self._between = covariance(self.learnt, self.learnt, self.scales) if self.learnt else None

    def predict(self, examples: Sequence[Example]) -> list[Predicted]:
        """Of each example, in order."""
        found: dict[int, Predicted] = {}
        for allowed, which in self._by_allowed(examples).items():
            for number, predicted in zip(
                which, self._from(allowed, [examples[i] for i in which]), strict=True
            ):
                found[number] = predicted
        return [found[number] for number in range(len(examples))]

    def _by_allowed(self, examples: Sequence[Example]) -> dict[tuple[int, ...], list[int]]:
        """Numbers of learnt examples → the examples that may be predicted from just those."""
        own = defaultdict(list)
        for number, one in enumerate(self.learnt):
            own[one.group].append(number)
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, one in enumerate(examples):
            mine = [i for i in own[one.group] if self.learnt[i].id != one.id]
            kept = set(self._anchors(mine))
            out = set(own[one.group]) - kept
            found[tuple(i for i in range(len(self.learnt)) if i not in out)].append(number)
        return found

    def _anchors(self, mine: Sequence[int]) -> list[int]:
        """So many of a group's, each as far as can be from those before it."""
        chosen = list(mine[: min(1, self.anchors)])
        while len(chosen) < min(self.anchors, len(mine)):
            rest = [i for i in mine if i not in chosen]
            chosen.append(max(rest, key=lambda i: min(self._apart(i, j) for j in chosen)))
        return chosen

    def _apart(self, a: int, b: int) -> float:
        pairs = zip(self.learnt[a].place, self.learnt[b].place, strict=True)
        return sum((x - y) ** 2 for x, y in pairs)

    def _from(self, allowed: Sequence[int], examples: Sequence[Example]) -> list[Predicted]:
        import numpy as np

        variances = np.diag(covariance(examples, examples, self.scales)) + self.scales.noise**2
        means = np.zeros(len(examples))
        if allowed:
            assert self._between is not None
            known = self._between[np.ix_(allowed, allowed)] + self.scales.noise**2 * np.eye(len(allowed))
            learnt = [self.learnt[i] for i in allowed]
            across: Matrix = covariance(examples, learnt, self.scales)
            solved = np.linalg.solve(known, across.T)
            means = solved.T @ np.array([one.excess for one in learnt])
            variances = variances - (across * solved.T).sum(1)
        return [
            Predicted(math.exp(one.predicted + mean), math.sqrt(max(variance, self.scales.noise**2)))
            for one, mean, variance in zip(examples, means, variances, strict=True)
        ]

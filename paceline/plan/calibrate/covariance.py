"""How alike the errors of two predictions are, before any run is looked at.

The error of a prediction is, to first order, the sum over kinds of work of *share × error of that kind's
multiplier*. A multiplier's error has parts that all runs share, and parts of an engine, a family of programs, an
accelerator with its number type, an accelerator under a family. So two runs are alike where the same work fills
their steps and where they share hardware and programs. What multipliers cannot say is left to an offset of the
same levels, and to a smooth function of where a run lies. Runs of one group share a little more; the rest is noise.

Scales are standard deviations of natural logarithms, chosen by hand for what each can plausibly be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.plan.calibrate.example import Example
from paceline.plan.speed.rates import NAMES

if TYPE_CHECKING:
    import numpy as np

    Matrix = np.ndarray[Any, np.dtype[np.float64]]

KIND = 0.3
KINDS = {
    "matmul": 0.15,
    "narrow": 0.1,
    "few_tokens": 0.05,
    "launch": 0.6,
    "latency": 0.5,
    "nic": 0.4,
    "unfused": 0.4,
    "contention": 0.5,
    "host": 0.7,
}
"""Of a multiplier's shared part; ``KIND`` where nothing stands."""

Keys = tuple[str, ...]
LEVELS: tuple[tuple[Keys, float, float], ...] = (
    ((), 1.0, 0.0),
    (("engine",), 0.7, 0.08),
    (("family",), 0.7, 0.15),
    (("accelerator", "products"), 0.8, 0.12),
    (("accelerator", "family"), 0.3, 0.1),
    (("group",), 0.2, 0.08),
)
"""(what two runs must have alike, multipliers' scale over ``KINDS``, scale of an offset)."""


@dataclass(frozen=True)
class Scales:
    """All scales. ``reach``: distance over which errors are alike. ``smooth``: of the function of the place."""

    kinds: tuple[float, ...] = field(default_factory=lambda: tuple(KINDS.get(n, KIND) for n in NAMES))
    levels: tuple[tuple[Keys, float, float], ...] = LEVELS
    reach: float = 2.0
    smooth: float = 0.1
    smooth_in_family: float = 0.1
    noise: float = 0.04


def covariance(a: Sequence[Example], b: Sequence[Example], scales: Scales) -> Matrix:
    """Of the errors of ``a`` (rows) with those of ``b`` (columns), without the noise of each."""
    import numpy as np

    weights = np.array(scales.kinds) ** 2
    alike_work = (np.array([one.shares for one in a]) * weights) @ np.array([one.shares for one in b]).T
    found = np.zeros((len(a), len(b)))
    for keys, scale, offset in scales.levels:
        same = _same(a, b, keys)
        found += same * (scale**2 * alike_work + offset**2)
    near = np.exp(-_squared_distance(a, b) / (2 * scales.reach**2))
    found += near * (scales.smooth**2 + scales.smooth_in_family**2 * _same(a, b, ("family",)))
    return found


def _same(a: Sequence[Example], b: Sequence[Example], keys: Keys) -> Matrix:
    """1 where all keys are equal."""
    import numpy as np

    numbers: dict[tuple[str, ...], int] = {}
    left, right = (
        np.array([numbers.setdefault(tuple(getattr(one, key) for key in keys), len(numbers)) for one in side])
        for side in (a, b)
    )
    return (left[:, None] == right[None, :]).astype(np.float64)


def _squared_distance(a: Sequence[Example], b: Sequence[Example]) -> Matrix:
    import numpy as np

    left, right = np.array([one.place for one in a]), np.array([one.place for one in b])
    squares = (left**2).sum(1)[:, None] + (right**2).sum(1)[None, :] - 2 * left @ right.T
    return np.maximum(squares, 0.0)

"""Uncertainty of predicted seconds: log-normal, with what two layouts share cancelled between them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from paceline.plan.columns import Column

NINETY = 1.6449  # standard deviations on each side of a 90 % interval
PARTS = ("compute", "deliver", "update", "host", "idle")


def sigma(seconds: Mapping[str, Column], part_sigma: Mapping[str, Column]) -> Column:
    """Standard deviation of the logarithm of a step, from the errors of its parts and the layout's own."""
    whole = sum(seconds[part] for part in PARTS)
    shares = ((seconds[part] / whole * part_sigma[part]) ** 2 for part in PARTS)
    return (sum(shares) + part_sigma["own"] ** 2) ** 0.5


def interval(mid: float, deviation: float) -> tuple[float, float, float]:
    """(low, mid, high): nine in ten real values lie between low and high."""
    factor = math.exp(NINETY * deviation)
    return mid / factor, mid, mid * factor


def faster(
    a_seconds: Mapping[str, float], b_seconds: Mapping[str, float], part_sigma: Mapping[str, float]
) -> float:
    """Probability that layout A's step is shorter than B's, from 0 to 1.

    An error of the compute rate moves both, so only the difference of the shares counts; what is a
    layout's own error is independent.
    """
    a, b = sum(a_seconds[p] for p in PARTS), sum(b_seconds[p] for p in PARTS)
    shared = sum(((a_seconds[p] / a - b_seconds[p] / b) * part_sigma[p]) ** 2 for p in PARTS)
    spread = math.sqrt(shared + 2 * part_sigma["own"] ** 2)
    return 0.5 * (1 + math.erf(math.log(b / a) / (spread * math.sqrt(2))))


def exceeds(value: float, limit: float, deviation: float) -> float:
    """Probability that a log-normal value around ``value`` lies above ``limit``."""
    if limit <= 0:
        return 1.0
    return 0.5 * (1 - math.erf(math.log(limit / value) / (deviation * math.sqrt(2))))

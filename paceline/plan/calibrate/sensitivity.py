"""The predicted step of a case, and how it changes with each multiplier: the share of the step that each kind is."""

from __future__ import annotations

import math

from paceline.plan.cost.step import Memory, estimate
from paceline.plan.published.cases import Case
from paceline.plan.speed.gpu import GpuSpeeds
from paceline.plan.speed.rates import AS_PUBLISHED, NAMES, Rates

MOVE = 0.05
"""Of a logarithm: small beside what is learnt, large beside rounding."""
NO_MEMORY: Memory = ({}, 0.0, 0.0, 0.0)


def log_seconds(case: Case, rates: Rates = AS_PUBLISHED) -> float:
    """Logarithm of the predicted seconds of a step."""
    speeds = GpuSpeeds(case.cluster, case.work.precision, rates, case.software)
    return math.log(estimate(case.layout, case.work, speeds, case.cluster, NO_MEMORY).step_s)


def sensitivity(case: Case) -> tuple[float, tuple[float, ...]]:
    """(log seconds, its derivative by each multiplier in the order of ``rates.NAMES``)."""
    here = log_seconds(case)
    moved = (log_seconds(case, AS_PUBLISHED.moved(name, MOVE)) for name in NAMES)
    return here, tuple((there - here) / MOVE for there in moved)

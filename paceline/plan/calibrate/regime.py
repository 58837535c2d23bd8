"""What binds a step: intervals are set for each kind of run by itself, since some are surer than others."""

from __future__ import annotations

from paceline.plan.calibrate.example import PLACES, Example
from paceline.plan.speed.rates import NAMES

REGIMES = ("launch-bound", "experts", "one host", "several hosts")
BOUND = 0.3
"""Share of the step from which a kind of work binds it."""


def regime(one: Example) -> str:
    """One of :data:`REGIMES`."""
    shares = dict(zip(NAMES, one.shares, strict=True))
    if shares["launch"] + shares["host"] > BOUND:
        return "launch-bound"
    if one.place[PLACES.index("experts")]:
        return "experts"
    return "several hosts" if one.several_hosts else "one host"

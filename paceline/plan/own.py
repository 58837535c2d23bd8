"""A cluster of one's own: what it cost, over what that is spread, and what its power costs (``[own]`` of its file)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from paceline.ledger.outcome import Exit, Refused

NUMBERS = ("usd_initial", "experiments", "usd_per_kwh", "watts_per_device", "pue")
HOUR_S = 3600.0


@dataclass(frozen=True)
class Own:
    """None = not stated: that part is not in the cost, and the plan says so.

    Attributes:
        usd_initial: of the whole cluster: hardware, room, installation.
        experiments: such runs as the one planned, over which it is spread. lifetime_s: or the seconds of its life.
        watts_per_device: while training, with its share of the host; default the data sheet's device alone.
        pue: power of the building over power of the machines.
    """

    usd_initial: float | None = None
    experiments: float | None = None
    lifetime_s: float | None = None
    usd_per_kwh: float | None = None
    watts_per_device: float | None = None
    pue: float | None = None

    @property
    def usd_each(self) -> float | None:
        """The share of one experiment."""
        if self.usd_initial is None or self.experiments is None:
            return None
        return self.usd_initial / self.experiments

    @property
    def usd_initial_per_hour(self) -> float | None:
        """The share of one hour of its life."""
        if self.usd_initial is None or self.lifetime_s is None:
            return None
        return self.usd_initial / (self.lifetime_s / HOUR_S)

    def usd_power_per_device_hour(self, tdp_w: float) -> float | None:
        """Of one device that works; None when a price or the power is not known."""
        watts = tdp_w if self.watts_per_device is None else self.watts_per_device
        if self.usd_per_kwh is None or not watts:
            return None
        return watts / 1e3 * (self.pue or 1.0) * self.usd_per_kwh


def own_of(table: Mapping[str, Any], where: str) -> Own:
    """The ``[own]`` table of a cluster file.

    Raises:
        Refused: 2, a key that it does not have, a value that is no amount, or a cost without what it is spread over.
    """
    unknown = [key for key in table if key not in (*NUMBERS, "lifetime")]
    if unknown:
        allowed = ", ".join((*NUMBERS, "lifetime"))
        _refuse(f"own.{unknown[0]} is no key of [own]", unknown[0], "the keys of [own]", "", where, allowed)
    values = {key: _amount(key, table[key], where) for key in NUMBERS if key in table}
    own = Own(**values)
    if "lifetime" in table:
        own = replace(own, lifetime_s=_lifetime(table["lifetime"], where))
    if own.usd_initial is not None and (own.experiments is None) == (own.lifetime_s is None):
        rule = "the initial cost is spread over a number of experiments or over a lifetime: one of the two"
        seen = "neither" if own.experiments is None else "experiments and lifetime"
        _refuse("own.usd_initial is spread over nothing known", seen, rule, "experiments = 50", where)
    return own


def _amount(key: str, value: Any, where: str) -> float:
    at_least = {"pue": 1.0, "experiments": 1.0}.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not at_least <= value < float("inf"):
        _refuse(f"own.{key} is not possible", value, f"a number of at least {at_least:g}", "", where)
    return float(value)


def _lifetime(value: Any, where: str) -> float:
    from paceline.job.quantities import QuantityError, parse_duration

    try:
        seconds = parse_duration(value) if isinstance(value, str) else 0.0
    except (QuantityError, ValueError):
        seconds = 0.0
    if seconds <= 0:
        _refuse("own.lifetime is not possible", value, "a duration above 0", 'lifetime = "1500d"', where)
    return float(seconds)


def _refuse(message: str, seen: object, rule: str, use: str, where: str, allowed: str = "") -> NoReturn:
    raise Refused(
        message,
        exit_code=Exit.USAGE,
        key="own",
        seen=seen,
        rule=rule,
        allowed=allowed,
        use=use,
        where=where,
    )

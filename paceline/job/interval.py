"""How often something happens: every so many steps, epochs, seconds, a fraction of the run, or never."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from paceline.job.quantities import (
    DURATION_UNITS,
    LARGEST,
    QuantityError,
    number_text,
    parse_duration,
    print_duration,
    scale,
    split,
)

Kind = Literal["steps", "epochs", "seconds", "fraction", "never"]
RULE = "an interval is steps, epochs, a duration, a percentage of the run, or never"
ALLOWED = '500, "500 steps", "1 epoch", "5min", "10%", "never"'
_STEP_UNITS = {"": 1, "k": 10**3, "M": 10**6, "step": 1, "steps": 1}


@dataclass(frozen=True)
class Interval:
    """``value`` counts what ``kind`` says: steps (int), epochs, seconds, or a fraction in (0, 1].

    Whatever looks at a clock is decided by rank 0 and broadcast; ``never`` has value 0.
    """

    kind: Kind
    value: float

    def __str__(self) -> str:
        if self.kind == "never":
            return "never"
        if self.kind == "steps":
            return f"{int(self.value)} step{'' if self.value == 1 else 's'}"
        if self.kind == "epochs":
            return f"{number_text(float(self.value))} epoch{'' if self.value == 1 else 's'}"
        if self.kind == "seconds":
            return print_duration(float(self.value))
        percent = (Decimal(repr(float(self.value))) * 100).normalize()
        return f"{percent:f}%" if percent >= Decimal("1e-6") else f"{percent}%"


NEVER = Interval("never", 0)


def parse_interval(value: object) -> Interval:
    """Interval: ``500`` or ``"500 steps"``, ``"1 epoch"``, ``"5min"``, ``"10%"`` of the run, ``"never"``."""
    if isinstance(value, Interval):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return _steps(Decimal(value))
    if isinstance(value, float):
        percent = f'"{number_text(value * 100)}%"' if 0 < value < 1 else ""
        raise QuantityError(RULE, allowed=ALLOWED, use=percent)
    if isinstance(value, str) and value.strip() == "never":
        return NEVER
    number, unit = split(value, RULE, ALLOWED)
    if unit in _STEP_UNITS:
        return _steps(scale(number, _STEP_UNITS[unit], LARGEST, RULE, ALLOWED))
    if number == 0:
        raise QuantityError("an interval is above zero", allowed=ALLOWED, use='"never"')
    if unit in ("epoch", "epochs"):
        return Interval("epochs", float(scale(number, 1, 1e9, RULE, ALLOWED)))
    if unit == "%":
        if number > 100:
            raise QuantityError("a fraction of the run is at most 100%", allowed=ALLOWED, use='"100%"')
        return Interval("fraction", _positive(float(number / 100)))
    if unit in DURATION_UNITS:
        return Interval("seconds", _positive(parse_duration(value)))
    raise QuantityError(RULE, allowed=ALLOWED, use=f'"{number}min"' if unit == "m" else "")


def print_interval(value: Interval) -> str:
    """The text that parses to it."""
    return str(value)


def _positive(value: float) -> float:
    """A number too small for a float is zero, and zero is no interval."""
    if value <= 0:
        raise QuantityError("an interval is above zero", allowed=ALLOWED, use='"never"')
    return value


def _steps(number: Decimal) -> Interval:
    if number != number.to_integral_value():
        raise QuantityError("steps are whole numbers", allowed=ALLOWED)
    if number < 1:
        use = '"never"' if number == 0 else ""
        raise QuantityError("an interval is above zero", allowed=ALLOWED, use=use)
    if number > LARGEST:
        raise QuantityError(f"{RULE}, at most {LARGEST} steps", allowed=ALLOWED)
    return Interval("steps", int(number))

"""Numbers with a meaning: Count, Duration, Bytes, Rate. Each parses, and prints to what it parses from.

A quantity is text with a unit (``"10B"``, ``"5min"``, ``"80GiB"``, ``"400Gbit"``); a Count may also be a
plain integer. Arithmetic is decimal and exact until the one rounding at the end, so that ``parse(print(x))
== x`` bit for bit. What cannot be a quantity (NaN, infinity, 1e309, below zero, no unit) is refused with
:class:`QuantityError`, whose fields become those of the job's error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Context, Decimal, DecimalException

# TOML integers are 64-bit, and so is everything that counts here.
LARGEST = 2**63 - 1
# No run lasts 100 years; a larger number is a typing error or an attack on the arithmetic.
LONGEST_S = 100 * 365 * 86400.0
FASTEST_BYTES_PER_S = 1e18

COUNT_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
DURATION_UNITS: dict[str, Decimal | int] = {
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": 1,
    "min": 60,
    "h": 3600,
    "d": 86400,
}
BYTES_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
}
RATE_UNITS: dict[str, Decimal | int] = {
    **BYTES_UNITS,
    **{
        f"{p}bit": Decimal(n) / 8 for p, n in {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}.items()
    },
}
_NUMBER = re.compile(r"(?P<number>\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d{1,4})?)\s*(?P<unit>[A-Za-zµ%]*)")
_LONGEST_TEXT = 64
# 40 digits hold any float64's shortest form times any unit exactly.
_EXACT = Context(prec=40)


class QuantityError(ValueError):
    """Not the quantity asked for: the rule, what is allowed, and what to write instead."""

    def __init__(self, rule: str, *, allowed: str = "", use: str = "") -> None:
        super().__init__(rule)
        self.rule, self.allowed, self.use = rule, allowed, use


def split(value: object, rule: str, allowed: str) -> tuple[Decimal, str]:
    """Number and unit of a text like ``"1.5 GiB"``; anything else is refused."""
    if not isinstance(value, str):
        raise QuantityError(rule, allowed=allowed)
    text = value.strip()
    found = _NUMBER.fullmatch(text) if len(text) <= _LONGEST_TEXT and text.isprintable() else None
    if found is None or "__" in text or "_." in text:
        why = "it is not negative" if text.startswith("-") else rule
        raise QuantityError(why, allowed=allowed)
    return Decimal(found["number"].replace("_", "")), found["unit"]


def scale(number: Decimal, factor: Decimal | int, limit: float, rule: str, allowed: str) -> Decimal:
    """``number * factor``, exact, refused above ``limit``."""
    try:
        scaled = _EXACT.multiply(number, Decimal(factor))
        if scaled <= Decimal(limit):
            return scaled
    except DecimalException:
        pass
    raise QuantityError(f"{rule}, at most {limit:.3g}", allowed=allowed)


def parse_count(value: object) -> int:
    """Count: ``1000``, ``"300k"``, ``"10B"`` (powers of ten). A whole number >= 0."""
    rule, allowed = (
        "a count is a whole number, plain or with k, M, B, T (powers of ten)",
        '1000, "300k", "10B"',
    )
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise QuantityError("a count is not negative", allowed=allowed)
        if value > LARGEST:
            raise QuantityError(f"{rule}, at most {LARGEST}", allowed=allowed)
        return value
    if isinstance(value, float):
        raise QuantityError(rule, allowed=allowed, use=_as_count(value))
    number, unit = split(value, rule, allowed)
    if unit not in COUNT_UNITS:
        raise QuantityError(rule, allowed=allowed)
    count = scale(number, COUNT_UNITS[unit], LARGEST, rule, allowed)
    if count != count.to_integral_value():
        raise QuantityError(rule, allowed=allowed)
    return int(count)


def _as_count(value: float) -> str:
    return str(int(value)) if 0 <= value <= LARGEST and value == int(value) else ""


def parse_duration(value: object) -> float:
    """Duration in seconds: ``"30s"``, ``"5min"``, ``"2h"``."""
    rule, allowed = "a duration is text with a unit: us, ms, s, min, h or d", '"30s", "5min", "2h"'
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise QuantityError(rule, allowed=allowed, use=_quoted(value, "s"))
    number, unit = split(value, rule, allowed)
    if unit not in DURATION_UNITS:
        use = f'"{number}min"' if unit in ("m", "minute", "minutes") else ""
        raise QuantityError(rule, allowed=allowed, use=use)
    return float(scale(number, DURATION_UNITS[unit], LONGEST_S, rule + " (seconds)", allowed))


def print_duration(seconds: float) -> str:
    """The shortest text that parses to exactly ``seconds``."""
    return _print(seconds, {u: DURATION_UNITS[u] for u in ("h", "min", "s", "ms", "us")}, "s")


def parse_bytes(value: object) -> int:
    """Bytes: ``"80GB"`` (10⁹), ``"80GiB"`` (2³⁰); rounded to whole bytes."""
    rule, allowed = (
        "bytes are text with a unit: B, kB … PB (powers of ten) or KiB … PiB (of two)",
        '"80GB", "80GiB"',
    )
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise QuantityError(rule, allowed=allowed, use=_quoted(value, "B"))
    number, unit = split(value, rule, allowed)
    if unit not in BYTES_UNITS:
        raise QuantityError(rule, allowed=allowed, use=_other_case(number, unit, BYTES_UNITS))
    return int(scale(number, BYTES_UNITS[unit], LARGEST, rule, allowed).to_integral_value())


def print_bytes(size: int) -> str:
    """The largest unit that divides ``size``."""
    for unit in ("PB", "TB", "GB", "MB", "kB", "PiB", "TiB", "GiB", "MiB", "KiB"):
        if size and size % BYTES_UNITS[unit] == 0:
            return f"{size // BYTES_UNITS[unit]}{unit}"
    return f"{size}B"


def parse_rate(value: object) -> float:
    """Rate in bytes a second: ``"400Gbit"`` or ``"50GB"`` (a second; ``/s`` may be written)."""
    rule, allowed = "a rate is text with a unit a second: Gbit, GB, GiB and their kin", '"400Gbit", "50GB"'
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise QuantityError(rule, allowed=allowed)
    text = value.strip().removesuffix("/s") if isinstance(value, str) else value
    number, unit = split(text, rule, allowed)
    if unit not in RATE_UNITS:
        raise QuantityError(rule, allowed=allowed, use=_other_case(number, unit, RATE_UNITS))
    return float(scale(number, RATE_UNITS[unit], FASTEST_BYTES_PER_S, rule + " (bytes a second)", allowed))


def print_rate(bytes_per_s: float) -> str:
    """The shortest text that parses to exactly ``bytes_per_s``."""
    return _print(bytes_per_s, {u: BYTES_UNITS[u] for u in ("TB", "GB", "MB", "kB")}, "B")


def _quoted(number: float, unit: str) -> str:
    return f'"{number:g}{unit}"' if number >= 0 and number == number and number < LARGEST else ""


def _other_case(number: Decimal, unit: str, units: Mapping[str, object]) -> str:
    """``gb`` → ``GB``; never between bits and bytes (``Gb``), which only the author can tell apart."""
    lower = unit.lower()
    match = [u for u in units if u.lower() == lower] if unit[-1:] == "b" and lower == unit else []
    return f'"{number}{match[0]}"' if match else ""


def _print(value: float, units: Mapping[str, Decimal | int], plain: str) -> str:
    """``value`` in the first unit in which it is a whole number, else its shortest form in ``plain``."""
    exact = Decimal(repr(value))
    for unit, factor in units.items():
        if value:
            count = _EXACT.divide(exact, Decimal(factor))
            if 1 <= count < 10**6 and count == count.to_integral_value():
                return f"{int(count)}{unit}"
    return f"{number_text(value)}{plain}"


def number_text(value: float) -> str:
    """``value`` without a trailing ``.0``; parses back to the same bits."""
    return repr(value).removesuffix(".0")

"""Numbers as the texts of the planner show them: three digits that count, thousands apart.

A power of ten only where the digits would tell nobody anything: from 1e15 on, and below 1e-12.
"""

from __future__ import annotations

import math

GIB = float(1 << 30)
LARGE, SMALL = 1e15, 1e-12


def beyond(value: float) -> bool:
    """Whether a number is shown as a power of ten."""
    return abs(value) >= LARGE or 0 < abs(value) < SMALL


def grouped(value: float) -> str:
    """Thousands apart: ``65 500``, three digits that count."""
    if beyond(value):
        return f"{value:.1e}"
    if value >= 1000:
        unit = 10 ** (len(str(int(value))) - 3)
        value = round(value / unit) * unit
    return f"{value:,.0f}".replace(",", " ")


def three(value: float) -> str:
    """``6 720``, ``79.2``, ``0.488``, ``0.0000123``; zeros at the end say nothing and are left out."""
    if beyond(value):
        return f"{value:.1e}"
    text = f"{value:.3g}"
    if "e" not in text:
        return text
    if abs(value) > 1:
        return grouped(round(value))
    return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}".rstrip("0")


def money(usd: float) -> str:
    """``$1 580 000``, ``$160``, ``$3.20``, ``under 1 cent``."""
    return f"${amount(usd)}" if usd == 0 or usd >= 0.01 else "under 1 cent"


def amount(usd: float) -> str:
    """Dollars in a column that is headed so: as :func:`money`, and ``<0.01``."""
    if 0 < usd < 0.01:
        return "<0.01"
    return grouped(usd) if usd >= 10 or usd == 0 else f"{usd:.2f}"

"""Numbers for people: three figures, units, thin spaces between thousands."""

from __future__ import annotations

import math
from itertools import pairwise

THIN = "\u202f"


def absent(value: object) -> bool:
    """Nothing to show: ``None``, not a number, or not finite."""
    return not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value)


def grouped(value: float | None) -> str:
    """19980.4 → ``19 980``."""
    return "–" if value is None or absent(value) else f"{value:,.0f}".replace(",", THIN)


def figures(value: float | None, digits: int = 3) -> str:
    """``digits`` significant figures, never in powers of ten for everyday sizes."""
    if value is None or absent(value):
        return "–"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= digits:
        return grouped(value)
    if size < -4:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - size)}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """0.912 → ``91.2 %``."""
    return "–" if share is None or absent(share) else f"{100 * share:.{digits}f}{THIN}%"


def seconds(value: float | None) -> str:
    """``830 µs``, ``12.4 ms``, ``0.41 s``, ``1:24``, ``3:07:12``."""
    if value is None or absent(value):
        return "–"
    if value == 0:
        return "0 s"
    if abs(value) < 1e-3:
        return f"{figures(value * 1e6)}{THIN}µs"
    if abs(value) < 0.1:
        return f"{figures(value * 1e3)}{THIN}ms"
    return f"{figures(value)}{THIN}s" if abs(value) < 60 else clock(value)


def clock(value: float | None) -> str:
    """Seconds as ``1:24`` or ``3:07:12``; days in front when there are any."""
    if value is None or absent(value):
        return "–"
    whole = round(value)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, s = divmod(rest, 60)
    text = f"{hours}:{minutes:02d}:{s:02d}" if hours or days else f"{minutes}:{s:02d}"
    return f"{days} d {text}" if days else text


def count(value: float | None) -> str:
    """5300000 → ``5.30 M``."""
    if value is None or absent(value):
        return "–"
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = 1e3 if unit == "k" else limit
            return f"{figures(value / scale)}{THIN}{unit}"
    return grouped(value) if float(value).is_integer() else figures(value)


def size(n_bytes: float | None) -> str:
    """Bytes in decimal units: ``60.1 MB``."""
    if n_bytes is None or absent(n_bytes):
        return "–"
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= limit:
            return f"{figures(n_bytes / limit)}{THIN}{unit}"
    return f"{n_bytes:.0f}{THIN}B"


def nice_ticks(low: float, high: float, about: int = 5, *, whole: bool = False) -> list[float]:
    """Round values that cover [low, high] about ``about`` times; ``whole`` numbers for what is counted."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / max(1, about)
    magnitude = 10 ** math.floor(math.log10(raw))
    steps = [m * magnitude for m in (1, 2, 2.5, 5, 10)]
    if whole:
        steps = [s for s in steps if s >= 1 and float(s).is_integer()] or [1.0]
    step = min(steps, key=lambda s: abs(math.log(s / raw)))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def tick_texts(ticks: list[float]) -> list[str]:
    """Round values with the same number of decimals each: as many as their distance needs."""
    apart = min((b - a for a, b in pairwise(ticks)), default=0.0)
    if apart <= 0:
        return [figures(t) for t in ticks]
    decimals = max(0, -math.floor(math.log10(apart) + 1e-9))
    decimals += any(abs(t - round(t, decimals)) > apart * 1e-6 for t in ticks)
    return [f"{t:,.{decimals}f}".replace(",", THIN) for t in ticks]

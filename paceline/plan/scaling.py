"""What a job costs by the number of devices: time, speed-up, efficiency, money, energy; where money a token turns.

Speed-up and efficiency are against the fewest devices that can train it at all. Energy is the data sheet's power of
the devices that the layout uses, without hosts, switches and cooling: what they draw at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.plan import money
from paceline.plan.answer import Plan
from paceline.plan.digits import three

Row = dict[str, Any]


def row(devices: int, found: Plan) -> Row:
    """Of one answer: layout, ``uses`` (devices), and [low, middle, high] of step, hours, money and energy.

    ``usd_per_million_tokens`` and ``usd_per_million_parameters`` (of the whole experiment) are of the middle.
    """
    best, uses = found.best, found.best.layout.world_size
    hours = None if best.hours is None else list(best.hours)
    cluster, watts = found.cluster, found.cluster.accelerator.tdp_w
    moved = found.facts.work.count.total * found.facts.work.master_bytes
    usd = None
    if hours is not None and best.usd is not None:
        usd = [sum(money.usd_parts(cluster, each, uses, moved).values()) for each in hours]
    seconds = uses / best.tokens_per_s
    return {
        "devices": devices,
        "uses": uses,
        "layout": str(best.layout),
        "step_s": list(best.step_s),
        "tokens_per_s": best.tokens_per_s,
        "goodput": best.goodput,
        "hours": hours,
        "usd": usd,
        "usd_per_million_tokens": _usd_per_million(found, usd),
        "usd_per_million_parameters": usd and usd[1] / (found.facts.work.count.total / 1e6),
        "device_s_per_million_tokens": seconds * 1e6,
        "kwh": None if hours is None or not watts else [uses * watts / 1e3 * each for each in hours],
    }


def _usd_per_million(found: Plan, usd: Sequence[float] | None) -> float | None:
    """Of the run's tokens; of a run of unknown length what rent and power ask for a million more."""
    facts = found.facts
    if usd is not None and facts.steps:
        return usd[1] / (facts.steps * facts.tokens_per_step) * 1e6
    hours, uses = 1e6 / found.best.tokens_per_s / found.best.goodput / 3600, found.best.layout.world_size
    return money.usd(found.cluster, hours, uses, 0.0)


def compared(rows: Sequence[Row]) -> list[Row]:
    """With ``speed_up`` and ``efficiency``; what was refused stays as it is."""
    first = next((one for one in rows if "tokens_per_s" in one), None)
    told = []
    for one in rows:
        if first is None or "tokens_per_s" not in one:
            told.append(dict(one))
            continue
        faster = one["tokens_per_s"] / first["tokens_per_s"]
        told.append(one | {"speed_up": faster, "efficiency": faster * first["uses"] / one["uses"]})
    return told


def turning(rows: Sequence[Mapping[str, Any]]) -> str:
    """Where a token costs least, and what it costs at the ends; empty with fewer than two answers."""
    known = [one for one in rows if "tokens_per_s" in one]
    if len(known) < 2:
        return ""
    priced = all(one["usd_per_million_tokens"] is not None for one in known)
    name = "usd_per_million_tokens" if priced else "device_s_per_million_tokens"
    least = min(known, key=lambda one: (float(f"{one[name]:.3g}"), one["uses"]))
    amount = f"${three(least[name])}" if priced else f"{three(least[name])} device-s"
    text = f"a million tokens cost least with {least['uses']}: {amount}"
    ends = [
        f"{one[name] / least[name] - 1:.0%} more with {one['uses']}".replace("%", " %")
        for one in (known[0], known[-1])
        if one[name] / least[name] >= 1.01
    ]
    return ", ".join([text, *ends])

"""``plan --scale``: the table of costs by number of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.cli.tables import table
from paceline.plan.digits import amount, three
from paceline.plan.scaling import turning

HEAD = ("DEVICES", "LAYOUT", "STEP S", "SPEED-UP", "EFFICIENCY", "HOURS", "90 %", "$", "$/MTOK", "KWH")
RIGHT = ("DEVICES", "STEP S", "SPEED-UP", "EFFICIENCY", "HOURS", "90 %", "$", "$/MTOK", "KWH")


def scale_text(rows: Sequence[Mapping[str, Any]], width: int) -> str:
    """The table, why counts were refused, and where a token costs least."""
    if not rows:
        return ""
    cells = [_cells(one) for one in rows]
    lines = ["", "", "scale", table(HEAD, cells, width=width, right=RIGHT, keep=4)]
    lines += [
        f" {one['devices']}: {one['refused']} (exit {one['exit_code']})" for one in rows if "refused" in one
    ]
    first = next((one for one in rows if "tokens_per_s" in one), None)
    if first is not None and first["uses"] > 1:
        lines.append(f" speed-up and efficiency are against {first['uses']} devices, the fewest that can")
    if first is not None and first["kwh"] is not None:
        lines.append(" energy is the data sheet's power of the devices alone")
    return "\n".join(lines + [f" {text}" for text in [turning(rows)] if text])


def _cells(one: Mapping[str, Any]) -> tuple[object, ...]:
    if "refused" in one:
        return (one["devices"], "refused", *[None] * (len(HEAD) - 2))
    hours, usd, kwh = one["hours"], one["usd"], one["kwh"]
    each = one["usd_per_million_tokens"]
    return (
        one["devices"],
        one["layout"],
        three(one["step_s"][1]),
        f"{one['speed_up']:.2f}×",
        f"{100 * one['efficiency']:.0f} %",
        hours and three(hours[1]),
        hours and f"{three(hours[0])}–{three(hours[2])}",
        usd and amount(usd[1]),
        None if each is None else three(each),
        kwh and three(kwh[1]),
    )

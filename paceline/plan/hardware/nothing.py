"""No offer is left: which limit binds, and what comes nearest."""

from __future__ import annotations

import math
from typing import NoReturn

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.hardware.choose import Choice, Tried


def refuse(choice: Choice, menu: str) -> NoReturn:
    """Exit 12 where a limit is missed, 11 where nothing fits, 2 where no offer has a price, 10 by the rule book."""
    rows = [choice.of(entry) for entry in choice.entries]
    for word in ("over budget", "late"):
        nearest = choice.nearest(word)
        if nearest is not None:
            _limit(nearest, len(rows), menu)
    if any(row.word == "no price" for row in rows):
        raise Refused(
            "no hardware of the list has a price",
            exit_code=Exit.USAGE,
            key="cluster.use",
            seen=menu,
            rule="offers are compared by what they cost; the catalogue has no price of these",
            use="a cluster file with usd_per_device_hour or [own], named in the list",
        )
    refused = [row for row in rows if row.word == "refused"]
    if refused and not any(row.word in ("no fit", "fewer do") for row in rows):
        raise Refused(
            refused[0].more,
            exit_code=Exit.RULE,
            key="layout.use",
            seen=f"{menu}: {len(rows)} offers",
            rule="the layout must be possible on one of them",
            use="--layout auto",
        )
    largest = max(rows, key=lambda row: row.hosts)
    raise Refused(
        "no hardware of the list holds this job",
        exit_code=Exit.MEMORY,
        key="cluster.use",
        seen=f"{menu}: up to {largest.hosts} hosts ({largest.name}), {len(rows)} offers",
        rule="weights, gradients, optimizer state and activations of a rank fit its device with room left",
        use="--cluster any, or a smaller model",
    )


def _limit(nearest: Tried, offers: int, menu: str) -> NoReturn:
    """The nearest miss, and the limit that it would meet. Where both are set, the other may be the next to bind."""
    late = nearest.word == "late"
    limit = f"{nearest.needs * 1.02:.3g}"
    raise Refused(
        f"no hardware of the list meets the {'deadline' if late else 'budget'}",
        exit_code=Exit.DEADLINE,
        key="layout.deadline" if late else "layout.budget_usd",
        seen=f"{menu}: nearest {nearest.name}, {nearest.layout}: {nearest.more} (90 %; {offers} offers)",
        rule="the upper end of the interval lies inside the limit",
        use=f"--deadline {limit}h" if late else f"--budget {math.ceil(nearest.needs * 1.02)}",
    )

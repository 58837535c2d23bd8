"""No offer is left: which limit binds, and what comes nearest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.digits import amount, three
from paceline.plan.hardware.choose import Tried
from paceline.plan.weigh import Question


def refuse(question: Question, rows: Sequence[Tried], menu: str) -> NoReturn:
    """Exit 12 where a limit is missed, 11 where nothing fits, 2 where no offer has a price, 10 by the rule book."""
    late = [row for row in rows if row.word == "late"]
    dear = [row for row in rows if row.word == "over budget"]
    if late or dear:
        _limits(question, late, dear, len(rows), menu)
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


def _limits(
    question: Question, late: Sequence[Tried], dear: Sequence[Tried], offers: int, menu: str
) -> NoReturn:
    """The nearest miss of the limit that the fewest miss; the other is what those would break."""
    deadline = bool(late) and (not dear or question.budget_usd is None)
    rows = late if deadline else dear
    nearest = min(rows, key=lambda row: row.hours if deadline else row.usd or 0.0)
    told = f"{three(nearest.hours)} h" if deadline else f"${amount(nearest.usd or 0.0)}"
    both = question.deadline_s is not None and question.budget_usd is not None
    raise Refused(
        f"no hardware of the list meets the {'deadline' if deadline else 'budget'}"
        + (" and the other limit together" if both else ""),
        exit_code=Exit.DEADLINE,
        key="layout.deadline" if deadline else "layout.budget_usd",
        seen=f"{menu}: nearest {nearest.name}, {told}: {nearest.more} ({offers} offers)",
        rule="the upper end of the interval lies inside the limit",
        use=_repair(nearest, deadline),
    )


def _repair(nearest: Tried, deadline: bool) -> str:
    """A limit that the nearest would meet: half above its middle or its bound, more than the catalogue's interval."""
    value = (nearest.hours if deadline else nearest.usd or 0.0) * 1.5
    return (
        f"--deadline {three(value).replace(' ', '')}h"
        if deadline
        else f"--budget {three(value).replace(' ', '')}"
    )

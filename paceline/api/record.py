"""The decision record of a plan: as JSON, as lines, and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.ledger.outcome import Exit, Failed

if TYPE_CHECKING:
    from paceline.plan.answer import Plan

SENSITIVITY = "sensitivity"
"""The word of ``--what-if`` that asks about every assumption at once."""


def record_of(plan: Plan) -> dict[str, Any]:
    """The plan with families, tied set, sensitivity and inputs (``paceline plan --json``)."""
    from paceline.plan.decision import decision

    return decision(plan)


def turns_text(plan: Plan) -> str:
    """What would change the choice, a line for each assumption; says so where nothing was chosen."""
    from paceline.plan.sensitivity import lines, sensitivity

    rows = sensitivity(plan)
    told = lines(rows) or ["nothing was chosen: the layout was asked for"]
    return "\n\nsensitivity  the factor nearest to 1 that changes the choice\n" + "\n".join(
        f" {line}" for line in told
    )


def write_page(plan: Plan, path: Path) -> Path:
    """The whole record as a page that needs no network."""
    from paceline.evidence.plan_page import write_plan_page
    from paceline.plan.decision import decision

    return write_plan_page(decision(plan, points=True), path)


def save_plan(plan: Plan, path: str) -> str:
    """``--save``: a page where the name ends in ``.html``, else a job file; what was written, in words.

    Raises:
        Refused: (2) the place takes no file. Failed: (55) it cannot be written.
    """
    from paceline.plan.answer import PAGE

    if Path(path).suffix.lower() != PAGE:
        plan.save(path)
        return f"{path}, with layout.use = {plan.best.layout}"
    try:
        write_page(plan, Path(path))
    except OSError as error:
        raise Failed(
            "the page cannot be written",
            exit_code=Exit.STORE,
            key="--save",
            seen=f"{path}: {error.strerror or error}",
            rule="the folder must be writable and have room",
            use="--save plan.html",
        ) from error
    return f"{path}, the plan as a page"

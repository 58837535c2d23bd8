"""``plan --measure K``: what it may stand beside, and how its progress is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.cli.screen import Screen
from paceline.ledger.outcome import Exit, Refused

if TYPE_CHECKING:
    from paceline.job import Loaded
    from paceline.plan.answer import Plan


def measured(
    screen: Screen,
    loaded: Loaded,
    cluster: str | None,
    layout: str | None,
    most: int,
    others: Mapping[str, object],
) -> Plan:
    """Run the best ``most`` layouts of the job here; the plan that the measurements choose.

    Raises:
        Refused: 2 beside what asks about another job or machine; whatever ``train`` refuses.
    """
    beside = [name for name, value in others.items() if value]
    if beside:
        raise Refused(
            f"{beside[0]} with --measure",
            exit_code=Exit.USAGE,
            key=beside[0],
            seen=f"--measure {most} {beside[0]} …",
            rule="measured is the job as it is, on the machine that is here",
            use=f"paceline plan JOB {beside[0]} … without --measure",
        )
    from dataclasses import replace

    from paceline.api.contest import measure_best

    if cluster is not None:
        loaded = replace(loaded, job=loaded.job.replace({"cluster.use": cluster}))
    asked = layout if layout is not None else loaded.job.layout.use
    return measure_best(loaded, asked, most, lambda label, text: screen.note(f"{label:<9}{text}"))

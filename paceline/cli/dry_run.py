"""``plan --dry-run``: the answer of a fake cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.cli.screen import Reply, Screen
from paceline.ledger.outcome import Exit, Refused

if TYPE_CHECKING:
    from paceline.job import Job


def reply(screen: Screen, job: Job, cluster: str | None, layout: str | None, rank: int) -> Reply:
    """Run it and say what came out; what is being run is said on stderr."""
    from paceline.api.dry_run import dry_run
    from paceline.plan.dry_run import text

    found = dry_run(
        job, rank=rank, cluster=cluster, layout=layout, say=lambda line: screen.note(f"dry run  {line}")
    )
    return Reply(found.to_dict(), text(found))


def refuse_alone(dry_run: bool, others: Mapping[str, object]) -> None:
    """Refuse (2) ``--rank`` without ``--dry-run``, and beside it what asks for a plan: it would be ignored."""
    if not dry_run:
        raise Refused(
            "--rank without --dry-run",
            exit_code=Exit.USAGE,
            key="--rank",
            seen="--rank",
            rule="a plan is for all ranks; one rank's step is looked at on a fake cluster",
            use="--dry-run --rank R",
        )
    given = [name for name, value in others.items() if value]
    if given:
        raise Refused(
            f"{given[0]} with --dry-run",
            exit_code=Exit.USAGE,
            key=given[0],
            seen=f"--dry-run {given[0]}",
            rule="a dry run answers for one layout and chooses nothing",
            use=f"leave {given[0]} out, or --dry-run",
        )

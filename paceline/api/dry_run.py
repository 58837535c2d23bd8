"""``plan --dry-run``: the step of any rank of a layout on a fake cluster, in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.jobs import load_job
from paceline.api.plan import measured_here, resolve_cluster
from paceline.ledger.outcome import Exit, Refused

if TYPE_CHECKING:
    from paceline.job import Job
    from paceline.plan.cluster import Cluster
    from paceline.plan.cost.terms import Work
    from paceline.plan.dry_run import DryRun
    from paceline.plan.layout import Layout
    from paceline.plan.measured import Measured

ENTRY = "paceline.recipes.dry_run:run"
HUNG_S = 1200.0  # far above the recipe's own limit


def dry_run(
    job: Job | str | Path,
    *,
    rank: int = 0,
    cluster: str | Cluster | None = None,
    layout: str | Layout | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> DryRun:
    """Run one step of one rank on tensors without values, and say what it holds and sends.

    Args:
        job: a job, a job file or a run.
        rank: of the layout.
        cluster: decides what ``auto`` means, for the layout and the precision; default the job's.
        layout: default the job's ``layout.use``; ``auto`` is what the planner chooses, and it chooses a micro-batch
            that is not given.
        say: told what is run.

    Raises:
        Refused: 2 for a rank that the layout does not have, or a step that is too large to be run so; whatever the
            planner and the rule book refuse.
    """
    from paceline.job.untrained import refuse_to_build
    from paceline.launch.local import run_ranks
    from paceline.plan.cost.terms import micro_batches
    from paceline.plan.dry_run import DryRun, check_question
    from paceline.plan.facts import job_facts

    found = load_job(job).job
    refuse_to_build(found)
    where = resolve_cluster(cluster if cluster is not None else found.cluster.use, found.run.device)
    measured = measured_here()
    chosen, assumed = _layout(found, where, measured, layout if layout is not None else found.layout.use)
    check_question(chosen, rank)
    facts = job_facts(found, where, measured if where.visible else None)
    work = facts.work
    rows, count = micro_batches(chosen, work.global_batch)
    payload: dict[str, Any] = {
        "job": found.to_dict(),
        "widths": found.model.widths(work.widths.vocab_size).to_dict(),
        "layout": str(chosen),
        "rank": rank,
        "precision": work.precision,
        "rows": rows,
        "count": count,
    }
    with tempfile.TemporaryDirectory(prefix="paceline-dry-") as logs:
        (result,) = run_ranks(
            ENTRY,
            payload,
            world_size=1,
            logs=Path(logs),
            hang_timeout_s=HUNG_S,
            on_message=lambda _, row: say(row["text"]) if row.get("kind") == "say" else None,
        )
    answer = DryRun.from_dict(result)
    vocabulary = [line for line in facts.assumed if "vocabulary" in line]
    return replace(
        answer,
        assumed=[*answer.assumed, *assumed, *vocabulary],
        planner=_planner(chosen, work, where, measured),
    )


def _planner(layout: Layout, work: Work, cluster: Cluster, measured: Measured | None) -> dict[str, float]:
    """What the planner counts for the layout, which decides whether it fits."""
    from paceline.plan.cost.step import memory_of
    from paceline.plan.search import speeds_of

    speeds = speeds_of(cluster, measured, work.precision)
    _, allocated, _, device = memory_of(layout, work, speeds, cluster)
    room = cluster.memory_of_rank(cluster.ranks_on_host(layout.world_size))
    return {"allocated": allocated, "device": device, "room": room}


def _layout(
    job: Job, cluster: Cluster, measured: Measured | None, wanted: str | Layout
) -> tuple[Layout, list[str]]:
    """The layout with every choice made, and what was chosen for want of a better reason.

    A closed layout with its micro-batch is taken as it is, however large: only the rule book is asked. Else the
    planner; where it finds no micro-batch that fits, the smallest one shows by how much.
    """
    from paceline.plan import rules
    from paceline.plan.facts import job_facts
    from paceline.plan.layout import Layout
    from paceline.plan.search import plan

    work = job_facts(job, cluster, measured).work
    facts = rules.Facts(
        work.widths,
        work.global_batch,
        optimizer=job.optimizer.name,
        sequence_length=work.sequence_length,
    )
    layout = wanted if isinstance(wanted, Layout) else rules.read(wanted, facts, "--layout")
    if not layout.open:
        rules.check(layout, facts, "--layout")
        if layout.mbs is not None:
            return layout, []
    try:
        return plan(job, cluster=cluster, measured=measured, layout=layout, top=1).layout, []
    except Refused as refused:
        unfit = (Exit.MEMORY, Exit.DEADLINE, Exit.RULE)
        if layout.open or refused.exit_code not in unfit:
            raise
        return layout.replace(mbs=1), [f"mbs=1: for {cluster.name} the planner says: {refused.message}"]

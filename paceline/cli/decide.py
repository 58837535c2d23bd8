"""Decide: plan."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.frame import Later, command
from paceline.cli.screen import Reply, Screen
from paceline.cli.words import ClusterWord, JobWord, LayoutWord, Sets, split_sets


def register(app: typer.Typer, sections: dict[str, typer.Typer]) -> None:
    """Adds the commands of this group."""
    command(
        app,
        "plan",
        later=(
            Later("--measure", "run the best K for a few steps", "03", "K"),
            Later("--draw", "the schedule, as text or SVG", "02"),
            Later("--dry-run", "a step of one rank on a fake cluster", "02"),
            Later("--rank", "the rank of --dry-run", "02", "R"),
            Later("--score", "compare predictions with runs of a table", "03", "CSV"),
            Later("--calibrate", "fit to the runs of a table", "03", "CSV"),
            Later("--out", "where --score writes", "03", "CSV"),
        ),
    )(plan)


def plan(
    screen: Screen,
    job: JobWord,
    cluster: ClusterWord = None,
    layout: LayoutWord = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="candidates to show")] = 5,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if", metavar="KEY=V1,V2", help="would this change the answer; `cluster.` may be left out"
        ),
    ] = None,
    objective: Annotated[
        str | None, typer.Option("--objective", metavar="time|cost|memory", help="as layout.objective")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="D", help='as layout.deadline: "8h"')
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="USD", help="as layout.budget_usd")
    ] = None,
    scale: Annotated[
        str | None, typer.Option("--scale", metavar="1,2,8,64", help="cost and speed-up by device count")
    ] = None,
    save: Annotated[
        str | None, typer.Option("--save", metavar="FILE", help="write a job with layout.use filled in")
    ] = None,
    sets: Sets = None,
) -> Reply:
    """Which layout, on what hardware, and is it worth it at all, or one device. Starts nothing."""
    from paceline.api import plan as planning
    from paceline.plan.show import text

    pairs = split_sets(sets)
    options = {
        "layout.objective": objective,
        "layout.deadline": deadline,
        "layout.budget_usd": budget,
    }
    pairs += [(key, value) for key, value in options.items() if value is not None]
    loaded = planning.load(job, pairs)
    chosen = planning.plan(
        loaded.job,
        cluster=cluster or loaded.job.cluster.use,
        layout=layout or loaded.job.layout.use,
        top=top,
        what_if=planning.parse_what_if(what_if or []),
    )
    result = chosen.to_dict()
    scaled = planning.scale(loaded.job, planning.parse_counts(scale), cluster=cluster) if scale else []
    if scaled:
        result["scale"] = scaled
    if save:
        chosen.save(save)
        screen.note(f"saved    {save} with layout.use = {chosen.best.layout}")
    return Reply(result, lambda terminal: text(chosen, width=terminal.width) + planning.scale_text(scaled))

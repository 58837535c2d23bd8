"""Decide: plan, prove."""

from __future__ import annotations

from shlex import join
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import complete
from paceline.cli.frame import Here
from paceline.cli.screen import Reply, Screen
from paceline.cli.words import JobWord, LayoutWord, MaybeJobWord, Sets, split_sets

if TYPE_CHECKING:
    from paceline.api.draw import Drawing
    from paceline.cli.terminal import Terminal
    from paceline.plan.answer import Plan


def plan(
    screen: Screen,
    job: MaybeJobWord = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="C",
            help="as cluster.use; or a choice: aws, gcp, azure, any, names with commas",
            autocompletion=complete.cluster_names,
        ),
    ] = None,
    layout: LayoutWord = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="candidates to show")] = 5,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="KEY=V1,V2",
            help="would this change the answer; `cluster.` may be left out; `sensitivity`: what would",
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
        str | None,
        typer.Option(
            "--save", metavar="FILE", help=".toml: a job with layout.use filled in; .html: the plan as a page"
        ),
    ] = None,
    measure: Annotated[
        int | None,
        typer.Option(
            "--measure", metavar="K", min=1, help="run the best K for a few steps; the best measured wins"
        ),
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="the pipeline's schedule, as text and as an SVG file")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="one rank's step on a fake cluster: its memory and messages")
    ] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="R", help="the rank of --dry-run, from 0")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option("--score", metavar="CSV", help="predict the measured runs of a table; no JOB"),
    ] = None,
    calibrate: Annotated[
        str | None, typer.Option("--calibrate", metavar="CSV", help="runs that --score may learn from")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="CSV", help="file for the predictions of --score")
    ] = None,
    anchors: Annotated[
        int, typer.Option("--anchors", metavar="N", min=0, help="--score: runs of its own group it may use")
    ] = 0,
    sets: Sets = None,
) -> Reply:
    """Which layout, on what hardware, and is it worth it at all, or one device. Starts nothing without --measure."""
    from paceline.cli import score as scoring

    plans: dict[str, object] = {
        "--cluster": cluster,
        "--layout": layout,
        "--what-if": what_if,
        "--scale": scale,
        "--save": save,
        "--measure": measure,
    }
    plans |= {"--draw": draw, "--dry-run": dry_run, "--rank": rank is not None, "--set": sets}
    plans |= {"--objective": objective, "--deadline": deadline, "--budget": budget}
    scoring.refuse_mixed(score, job, plans, {"--calibrate": calibrate, "--out": out, "--anchors": anchors})
    if score is not None or job is None:
        return scoring.reply(screen, score or "", calibrate, out, anchors)
    from paceline.api.jobs import load_job
    from paceline.api.plan import check_save, hardware_plan, menu_of, parse_counts, parse_what_if, scale_by
    from paceline.api.plan import plan as make_plan
    from paceline.api.record import SENSITIVITY, record_of, save_plan, turns_text
    from paceline.plan.show import table

    typed = join([job, *(word for one in sets or () for word in ("--set", one))])
    options = {"layout.objective": objective, "layout.deadline": deadline, "layout.budget_usd": budget}
    pairs = split_sets(sets) + [(key, value) for key, value in options.items() if value is not None]
    loaded = load_job(job, pairs)
    found = loaded.job
    if dry_run or rank is not None:
        from paceline.cli.dry_run import refuse_alone, reply

        refuse_alone(
            dry_run,
            {"--what-if": what_if, "--scale": scale, "--save": save, "--draw": draw, "--measure": measure},
        )
        return reply(screen, found, cluster, layout, rank or 0)
    if save is not None:
        check_save(save, loaded.files)
    asked = parse_what_if([word for word in what_if or [] if word != SENSITIVITY])
    menu, hardware = menu_of(found, cluster), None
    if measure is not None:
        from paceline.cli.contest import measured

        chosen = measured(screen, loaded, cluster, layout, measure, {"--what-if": what_if, "--scale": scale})
    elif menu is not None:
        hardware, chosen = hardware_plan(found, menu, layout=layout, top=top, what_if=asked)
    else:
        chosen = make_plan(found, cluster=cluster, layout=layout, top=top, what_if=asked)
    result = record_of(chosen) if screen.json else chosen.to_dict()
    result |= {"hardware": hardware.to_dict()} if hardware else {}
    on = chosen.cluster if hardware else cluster
    scaled = scale_by(found, parse_counts(scale), cluster=on, layout=layout) if scale else []
    if scaled:
        result["scale"] = scaled
    if save is not None:
        screen.note(f"saved    {save_plan(chosen, save)}")
    drawn = _draw(screen, chosen, result) if draw else None

    def text(t: Terminal) -> str:
        told = table(chosen, width=t.width, job=typed)
        if hardware:
            from paceline.cli.hardware import hardware_text

            told = hardware_text(hardware, t.width) + told
        if SENSITIVITY in (what_if or []):
            told += turns_text(chosen)
        if scaled:
            from paceline.cli.scale import scale_text

            told += scale_text(scaled, t.width)
        return told + (f"\n\n{drawn.text(t.width)}" if drawn else "")

    return Reply(result, text)


def _draw(screen: Screen, plan: Plan, result: dict[str, Any]) -> Drawing | None:
    """The schedule of the plan's layout, its picture written and said."""
    from paceline.api.draw import drawing, file_name

    drawn = drawing(plan)
    if drawn is None:
        screen.note(f"drawn    nothing: {plan.best.layout} has no pipeline; --layout pp=2 has one")
        return None
    path = file_name(plan)
    drawn.write(path)
    result["schedule"] = drawn.to_dict() | {"svg": str(path)}
    screen.note(f"drawn    {path}")
    return drawn


def prove(
    screen: Screen,
    job: JobWord,
    layout: LayoutWord = None,
    every: Annotated[
        int | None,
        typer.Option("--all", metavar="N", min=1, help="a pairwise-covering set of layouts of up to N ranks"),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", metavar="K", help="optimizer steps, 3 to 100")] = 3,
    leg: Annotated[
        str, typer.Option("--leg", metavar="both|fp64|job", help="float64, the job's own precision, or both")
    ] = "both",
    shrink: Annotated[
        str, typer.Option("--shrink", metavar="auto|off", help="auto: the model in small; off: as it is")
    ] = "auto",
    sets: Sets = None,
) -> Reply:
    """Is the distributed run the same training? Compares every parameter's gradient with one device's.

    Trains the job's own model on its own data, on one device and on the layout, for a few steps in float64, and
    again in the job's own precision. Exit 61 when anything differs.
    """
    if every is not None:
        from paceline.cli.proofs import prove_every

        return prove_every(screen, job, every, layout, steps, leg, shrink, split_sets(sets))
    from paceline.api.prove import prove as prove_job
    from paceline.cli.proofs import reply_of

    def say(message: Any) -> None:
        screen.note(f"{message['field']:<8} {message['text']}")

    proof = prove_job(
        job,
        "auto" if layout is None else layout,
        steps=steps,
        shrink=shrink,
        leg=leg,
        set=split_sets(sets),
        on_message=say,
    )
    return reply_of(proof, json=screen.json)


HERE = (Here("prove", prove), Here("plan", plan))

"""What a proof is asked: its layout and options, read and refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.api.bench import Say
from paceline.api.jobs import MANY_TOKENS, Sets, run_of
from paceline.api.plan import resolve_cluster
from paceline.api.subject import Subject
from paceline.ledger.outcome import Exit, Refused
from paceline.plan.layout import Layout
from paceline.plan.rules import repair
from paceline.plan.shrink import runs

if TYPE_CHECKING:
    from paceline.job import Job

LEAST_STEPS, MOST_STEPS = 3, 100
LEGS = ("both", "fp64", "job")
SHRINKS = ("auto", "off")
STEPS_RULE = (
    "a proof takes three steps: the first tells of gradients, the second of the optimizer's state, the third of what "
    "both did"
)
STEPS = f"{LEAST_STEPS} to {MOST_STEPS}: the figures of every step are kept"
SHRINK_RULE = (
    "auto makes the model smaller for the proof and keeps what the layout divides; off takes it as it is"
)
LEG_RULE = "fp64 compares in float64, job in the job's own precision, both does one after the other"


def trained_layout(job: Job | str | Path, word: str, sets: Sets, say: Say) -> str:
    """Where JOB is a run and nothing else is asked for: what it trained with, which its own job may leave to auto."""
    run = run_of(job) if isinstance(job, str | Path) else None
    if word != "auto" or run is None or "layout.use" in dict(sets) or run.layout.auto:
        return word
    say("layout", f"{run.layout}: what {run.name} trained with")
    return str(run.layout)


def asked_layout(job: Job, word: str) -> Layout:
    """The layout that is meant: the word's, the job's, or the plan's; closed, and checked by the rule book.

    Raises:
        Refused: 2 or 10, with the nearest layout that runs.
    """
    from paceline.plan.rules import Facts, check, read

    text = job.layout.use if word == "auto" else word
    where = "layout.use" if text is job.layout.use else "--layout"
    cluster = resolve_cluster("this", job.run.device)
    facts = Facts(
        widths=job.model.widths(job.model.own_vocab_size() or MANY_TOKENS),
        global_batch=job.train.global_batch_size,
        devices=cluster.devices,
        cpu=cluster.is_cpu,
        optimizer=job.optimizer.name,
        sequence_length=job.data.sequence_length,
    )
    layout = read(text, facts, where)
    if layout.auto:
        return _planned(job, text)
    check(layout, facts, where)
    closed = layout.resolve(cluster.devices)
    if not runs(closed, facts.global_batch):
        check(closed.replace(mbs=1), facts, where)
    return closed


def _planned(job: Job, text: str) -> Layout:
    """What ``train`` would run here; a model that fits nowhere here can still be proven in small, on a layout given."""
    from paceline.api.plan import plan

    try:
        return plan(job, layout=text).layout
    except Refused as refused:
        if refused.exit_code != Exit.MEMORY:
            raise
        raise Refused(
            f"{refused.message}, so there is no layout that this machine would train with",
            exit_code=refused.exit_code,
            key="--layout",
            seen=refused.seen,
            rule="a proof runs the model in small: give the layout of the machine that will train it",
            use="--layout fsdp=2",
        ) from refused


def refuse_broken(subject: Subject, layout: Layout) -> None:
    """Refuse a layout that the rule book allows on the job and not on the job in small: shrinking kept too little.

    Where nothing was made smaller the tokenizer's vocabulary is what was not known before.
    """
    broken = subject.refused(layout)
    if broken is None:
        return
    raise Refused(
        f"the job{' in small' if subject.small.said else ''} does not take this layout: {broken[1]}",
        exit_code=broken[0].exit_code,
        key="--shrink",
        seen=f"{layout}; {subject.small.said or 'nothing was made smaller'}",
        rule=broken[0].text,
        use="--shrink off" if subject.small.said else f"--layout {repair(layout, subject.facts)}",
    )


def refuse_options(steps: int, shrink: str, leg: str) -> None:
    """Refuse (2) an option that is out of range."""
    for name, seen, good, rule, allowed, use in (
        ("--steps", str(steps), LEAST_STEPS <= steps <= MOST_STEPS, STEPS_RULE, STEPS, str(LEAST_STEPS)),
        ("--shrink", shrink, shrink in SHRINKS, SHRINK_RULE, ", ".join(SHRINKS), "auto"),
        ("--leg", leg, leg in LEGS, LEG_RULE, ", ".join(LEGS), "both"),
    ):
        if not good:
            raise Refused(
                f"{name} {seen} is not possible",
                exit_code=Exit.USAGE,
                key=name,
                seen=seen,
                rule=rule,
                allowed=allowed,
                use=f"{name} {use}",
            )

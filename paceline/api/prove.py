"""``pl.prove``: is the distributed run the same training? Every parameter's gradient against one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

from paceline.api.asked import LEAST_STEPS, asked_layout, refuse_broken, refuse_options, trained_layout
from paceline.api.bench import Bench, Say, open_bench, sayer
from paceline.api.jobs import Sets, load_job
from paceline.api.legs import SINGLE, ready, run_legs, what_it_needs, write_evidence
from paceline.api.naming import names_in_repairs
from paceline.api.runs import Run
from paceline.api.subject import Subject, refuse_large
from paceline.api.surroundings import environment
from paceline.evidence.cause import Difference, first_difference
from paceline.evidence.parity import Row
from paceline.launch.environment import refuse_engine_world
from paceline.launch.machine import refuse_platform
from paceline.ledger.outcome import Exit
from paceline.ledger.plural import many
from paceline.plan.layout import Layout

if TYPE_CHECKING:
    from paceline.job import Job


@dataclass(frozen=True)
class Proof:
    """What was compared, and the verdict.

    Attributes:
        proven: every leg ran, and everything is equal within its limit.
        rows: the table. first_difference: of a proof that failed, what is wrong and whose it is.
        said: what was made smaller. legs: those that ran (``fp64``, and the job's precision).
        run: the run folder with ``evidence/prove.json``.
    """

    layout: Layout
    proven: bool
    rows: tuple[Row, ...]
    first_difference: Difference | None
    said: str
    legs: tuple[str, ...]
    steps: int
    seconds: float
    run: Run
    notes: tuple[str, ...] = field(default=())

    @property
    def exit_code(self) -> int:
        return int(Exit.DONE if self.proven else Exit.UNPROVEN)

    def to_dict(self) -> dict[str, Any]:
        """As in ``evidence/prove.json``."""
        first = self.first_difference
        return {
            "layout": str(self.layout),
            "proven": self.proven,
            "rows": [row.to_dict() for row in self.rows],
            "first_difference": None if first is None else first.to_dict(),
            "shrunk": self.said,
            "legs": list(self.legs),
            "steps": self.steps,
            "seconds": round(self.seconds, 2),
            "run": self.run.name,
            "path": str(self.run.path),
            "notes": list(self.notes),
        }


def prove(
    job: Job | str | Path,
    layout: str | Layout = "auto",
    *,
    steps: int = LEAST_STEPS,
    shrink: str = "auto",
    leg: str = "both",
    set: Sets = (),
    on_message: Callable[[Mapping[str, Any]], None] | None = None,
) -> Proof:
    """Train the job's own model on its own data on one device and on the layout, and compare.

    Args:
        job: a job, a job file or a run.
        layout: to prove; ``auto`` = of a run the layout that it trained with, of a job its ``layout.use``, and
            where that is auto too, what the plan chooses.
        steps: optimizer steps, at least 3.
        shrink: ``auto`` makes the model smaller, keeping what the layout divides; ``off`` takes it as it is.
        leg: ``fp64``, ``job`` (the job's own precision) or both.
        set: job keys and values on top, as ``--set``.
        on_message: sees the headings (``say``).

    Raises:
        Refused: the job, the layout or the data is not acceptable; nothing has started.
        Failed: the ranks could not finish.
    """
    refuse_platform()
    refuse_options(steps, shrink, leg)
    say = sayer(on_message)
    began = time.monotonic()
    flags = _flags(str(layout), steps, shrink, leg, set)
    with names_in_repairs(job, flags=flags, again="paceline prove") as names, ExitStack() as held:
        refuse_engine_world(environment())
        loaded = load_job(job, set)
        word = trained_layout(job, str(layout), set, say)
        asked = asked_layout(loaded.job, word)
        bench = open_bench(loaded, held, say)
        names.run = bench.folder
        wanted = (SINGLE, asked)
        subject = bench.subject("reference", loaded.job, wanted, shrunk=shrink == "auto", steps=steps)
        refuse_large(subject, bench.machine.memory_bytes, asked.world_size)
        return bench.guarded(str(asked), lambda: _prove(bench, subject, asked, leg, began, say))


def _flags(layout: str, steps: int, shrink: str, leg: str, sets: Sets) -> str:
    """What a repair must say again, so that it is this proof and no other."""
    given = {"--layout": (layout, "auto"), "--steps": (steps, LEAST_STEPS), "--shrink": (shrink, "auto")}
    given["--leg"] = (leg, "both")
    words = [[flag, str(value)] for flag, (value, usual) in given.items() if value != usual]
    words += [["--set", f"{key}={value}"] for key, value in dict(sets).items()]
    return "".join(f" {join(word)}" for word in words)


def _prove(bench: Bench, subject: Subject, asked: Layout, leg: str, began: float, say: Say) -> Proof:
    layout = subject.dealt(asked)
    refuse_broken(subject, layout)
    exact, own = leg in ("both", "fp64"), leg in ("both", "job")
    notes = list(subject.notes)
    if layout.world_size == 1:
        notes.append("one device against one device: nothing distributed is proven (--layout)")
    if own and bench.precision == "fp64":
        notes.append("the job's own precision is float64: one leg is all there is")
        exact, own = True, False
    ready(bench, subject, exact=exact, own=own)
    say(
        "prove",
        f"one device is done; now {many(layout.world_size, 'rank')} of {layout}",
    )
    judged = run_legs(bench, subject, layout, exact=exact, own=own)
    failing = next((j for j in judged.values() if not j.equal), None)
    first = None
    if failing is not None:
        which = next(name for name, j in judged.items() if j is failing)
        say("prove", "differs; running it with less in it, to tell what the failure needs")
        needs = what_it_needs(bench, subject, layout, which)
        first = first_difference(failing, layout, needs)
    rows = tuple(row for j in judged.values() for row in j.rows)
    proof = Proof(
        asked,
        failing is None,
        rows,
        first,
        subject.small.said,
        tuple(judged),
        subject.steps,
        time.monotonic() - began,
        Run(bench.folder),
        tuple(notes),
    )
    write_evidence(bench.folder, proof.to_dict(), judged)
    return proof

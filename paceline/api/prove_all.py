"""``paceline prove --all N``: a set of layouts in which every pair of features meets, each against one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.asked import LEAST_STEPS, refuse_options
from paceline.api.bench import Bench, open_bench, sayer
from paceline.api.jobs import Sets, load_job
from paceline.api.legs import judged_leg, references, what_it_needs, write_evidence
from paceline.api.naming import names_in_repairs
from paceline.api.runs import Run
from paceline.api.subject import Subject
from paceline.api.surroundings import environment
from paceline.api.trials import Outcome
from paceline.evidence.cause import Difference, first_difference
from paceline.evidence.parity import Judged
from paceline.launch.environment import refuse_engine_world
from paceline.launch.machine import refuse_platform
from paceline.ledger.outcome import Exit
from paceline.ledger.plural import many
from paceline.plan.combinations import MUST, absent, allowed, factors, layout_of
from paceline.plan.covering import covering, uncovered
from paceline.plan.layout import Layout

if TYPE_CHECKING:
    from paceline.job import Job

BATCH = 22
"""Sequences a step: 3 and 4 ranks do not divide it, so that rows of weight zero are in most cases."""

MOST_ISOLATED = 3
"""Of the layouts that fail, how many are run again with less in them."""


@dataclass(frozen=True)
class Planned:
    """One case of many: on which subject, which layout, and the features that are not in the layout."""

    subject: str
    layout: Layout
    features: str = ""
    absent: str = ""


@dataclass
class Case:
    """What became of it.

    Attributes:
        number, of: its place in the list. verdict: ``equal``, ``DIFFERS``, ``NOT RUN`` or ``ENDED``.
        errors: worst error by leg. why: of what is not equal.
    """

    planned: Planned
    number: int = 0
    of: int = 0
    verdict: str = "NOT RUN"
    errors: Mapping[str, float] | None = None
    why: str = ""
    first: Difference | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "subject": self.planned.subject,
            "layout": str(self.planned.layout),
            "features": self.planned.features,
            "verdict": self.verdict,
            "errors": dict(self.errors or {}),
            "why": self.why,
            "first_difference": None if self.first is None else self.first.to_dict(),
        }


@dataclass(frozen=True)
class Proofs:
    """All of them.

    Attributes:
        refused: pairs of features that the rule book does not let stand together.
        notes: of each subject, what of its data was changed to meet what layouts cut, and what is not met.
    """

    cases: tuple[Case, ...]
    refused: int
    seconds: float
    run: Run
    notes: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Every case ran and is equal; what has not run is not proven."""
        return bool(self.cases) and all(case.verdict == "equal" for case in self.cases)

    @property
    def exit_code(self) -> int:
        return int(Exit.DONE if self.proven else Exit.UNPROVEN)

    def count(self, verdict: str) -> int:
        """How many ended so."""
        return sum(case.verdict == verdict for case in self.cases)

    def to_dict(self) -> dict[str, Any]:
        """As in ``evidence/prove.json``."""
        return {
            "proven": self.proven,
            "cases": [case.to_dict() for case in self.cases],
            "pairs_refused": self.refused,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 2),
            "run": self.run.name,
            "path": str(self.run.path),
        }


def prove_all(
    job: Job | str | Path,
    ranks: int,
    *,
    steps: int = LEAST_STEPS,
    shrink: str = "auto",
    leg: str = "both",
    set: Sets = (),
    on_message: Callable[[Mapping[str, Any]], None] | None = None,
    on_case: Callable[[Case], None] = lambda case: None,
) -> Proofs:
    """Prove a job on a pairwise-covering set of layouts of up to ``ranks`` ranks.

    Args:
        on_case: sees each case as soon as it is known. Others: as :func:`paceline.api.prove.prove`.
    """
    refuse_platform()
    refuse_options(steps, shrink, leg)
    say = sayer(on_message)
    with names_in_repairs(job, flags=f" --all {ranks}", again="paceline prove") as names, ExitStack() as held:
        refuse_engine_world(environment())
        loaded = load_job(job, set)
        bench = open_bench(loaded, held, say)
        names.run = bench.folder
        every = tuple(
            Layout().replace(**{axis: n})
            for axis in ("dp", "fsdp", "tp", "pp", "cp")
            for n in (2, 3, 4)
            if n <= ranks
        )
        subjects = {
            packing: bench.subject(
                packing,
                loaded.job.replace({"data.packing": packing}),
                (Layout(), *every),
                shrunk=shrink == "auto",
                steps=steps,
                batch=BATCH,
            )
            for packing in ("concat", "masked", "none")
        }
        values = factors(ranks)
        rows = covering(
            values,
            allowed(ranks, lambda row: subjects[row["packing"]].facts),
            first=[row for row in MUST if product(row) <= ranks],
        )
        planned = [plan_row(row["packing"], row, subjects[row["packing"]]) for row in rows]
        said = next(iter(subjects.values())).small.said
        say(
            "prove",
            f"{many(len(planned), 'layout')} of up to {many(ranks, 'rank')}"
            + (f" · shrunk to {said}" if said else ""),
        )
        legs = (leg in ("both", "fp64"), leg in ("both", "job") and bench.precision != "fp64")
        return bench.guarded(
            f"up to {many(ranks, 'rank')}",
            lambda: run_all(bench, subjects, planned, legs, on_case, refused=len(uncovered(values, rows))),
        )


def product(row: Mapping[str, Any]) -> int:
    """Ranks of a row of axes."""
    world = 1
    for axis in ("dp", "fsdp", "tp", "pp", "cp"):
        world *= row.get(axis, 1)
    return world


def plan_row(name: str, row: Mapping[str, Any], subject: Subject) -> Planned:
    """A row of the covering as a case on its subject."""
    layout = layout_of(row, subject.facts)
    assert layout is not None, "the covering holds rows that may be"
    return Planned(name, layout, str(row["packing"]), absent(layout, subject.facts))


def run_all(
    bench: Bench,
    subjects: Mapping[str, Subject],
    planned: Sequence[Planned],
    legs: tuple[bool, bool],
    on_case: Callable[[Case], None],
    *,
    refused: int = 0,
) -> Proofs:
    """Run every planned case that this version has, grouped by ranks; the references first.

    Args:
        legs: whether float64, and whether the job's own precision.
    """
    began = time.monotonic()
    exact, own = legs
    cases = [Case(p, why=p.absent) for p in planned]
    names = dict.fromkeys(case.planned.subject for case in cases if not case.planned.absent)
    ended = references(bench, [subjects[name] for name in names], exact=exact, own=own)
    for case in cases:
        if not case.why and case.planned.subject in ended:
            case.why = f"one device: {ended[case.planned.subject].message}"
    todo = {f"{n}": case for n, case in enumerate(cases) if not case.why}
    order = iter(range(1, len(cases) + 1))
    for case in cases:
        if case.why:
            _tell(case, order, len(cases), on_case)
    judged: dict[str, dict[str, Judged]] = {}
    wanted = [
        subjects[case.planned.subject].case(f"{key} {leg}", case.planned.layout, leg)
        for key, case in todo.items()
        for leg, on in (("fp64", exact), ("job", own))
        if on
    ]

    def heard(outcome: Outcome) -> None:
        key = outcome.case.name.split()[0]
        case = todo[key]
        if outcome.error is not None:
            case.verdict, case.why = "ENDED", outcome.error.message
            judged.setdefault(key, {})["ended"] = Judged((), ())
        else:
            leg, found = judged_leg(bench, subjects[case.planned.subject], case.planned.layout, outcome)
            judged.setdefault(key, {})[leg] = found
        if len(judged[key]) == exact + own or (case.verdict == "ENDED" and len(judged[key]) == 1):
            _settle(case, judged[key])
            _tell(case, order, len(cases), on_case)

    bench.trials.run(wanted, heard)
    failing = [key for key, case in todo.items() if case.verdict == "DIFFERS"]
    for key in failing:
        case = todo[key]
        leg, found = next((leg, j) for leg, j in judged[key].items() if not j.equal)
        subject = subjects[case.planned.subject]
        needs = (
            what_it_needs(bench, subject, case.planned.layout, leg) if key in failing[:MOST_ISOLATED] else ()
        )
        case.first = first_difference(found, case.planned.layout, needs)
    notes = tuple(f"{name}: {note}" for name in names for note in subjects[name].notes)
    proofs = Proofs(tuple(cases), refused, time.monotonic() - began, Run(bench.folder), notes)
    write_evidence(
        bench.folder, proofs.to_dict(), {f"{k} {leg}": j for k in failing for leg, j in judged[k].items()}
    )
    return proofs


def _settle(case: Case, judged: Mapping[str, Judged]) -> None:
    if case.verdict == "ENDED":
        return
    case.errors = {
        leg: max((row.error for row in j.rows if "gradients" in row.what), default=0.0)
        for leg, j in judged.items()
    }
    failing = next((j for j in judged.values() if not j.equal), None)
    case.verdict = "equal" if failing is None else "DIFFERS"
    if failing is not None:
        first = first_difference(failing, case.planned.layout)
        case.first, case.why = first, first.headline if first else ""


def _tell(case: Case, order: Any, of: int, on_case: Callable[[Case], None]) -> None:
    case.number, case.of = next(order), of
    on_case(case)

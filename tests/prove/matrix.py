"""``make prove``: families × layouts × features by pairwise covering, each against one device in float64, five steps.

    python -m tests.prove.matrix [--ranks 8] [--least 120] [--seed 0] [--leg fp64|both] [--only WORD] [--list]

Exit 0 only when every case ran and is equal. What the rule book refuses is no case; what is not in this version is
one, is told as NOT RUN, and makes the whole fail.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.api.bench import Bench, open_bench
from paceline.api.jobs import load_job
from paceline.api.prove_all import BATCH, Case, Planned, Proofs, product, run_all
from paceline.api.subject import Subject
from paceline.evidence.parity_text import case_line, summary
from paceline.job import Job
from paceline.ledger.outcome import Refused
from paceline.plan.combinations import MUST, PACKINGS, absent, allowed, factors, layout_of
from paceline.plan.covering import covering, uncovered
from paceline.plan.layout import Layout
from paceline.plan.rules import Facts
from tests.flow.corpus import write_corpus
from tests.prove.families import FAMILIES, JOB

STEPS = 5
LARGEST = 16
"""Ranks of the few cases that need more than the others may have: four axes of two."""

CUTS = (Layout(), *(Layout().replace(**{axis: n}) for axis in ("tp", "cp") for n in (2, 4)))
"""What the data of every family meets the borders of."""

MOE = ("moe-softmax", "moe-sigmoid")
SCHEDULES = ("1f1b", "interleaved", "gpipe", "zbv", "zero-bubble")
"""Of the required combinations, one each."""


@dataclass(frozen=True)
class Matrix:
    """The cases, and what they run on."""

    subjects: Mapping[str, Subject]
    planned: Sequence[Planned]
    refused: int


def job_of(folder: Path, family: str, packing: str = "concat") -> Job:
    """The job of a family.

    Raises:
        Refused: the family needs a key that is not in this version.
    """
    values = {f"model.{name}": value for name, value in FAMILIES[family].items()}
    base = Job(
        data={"train": str(folder / "corpus" / "*.txt")}, run={"name": "matrix", "root": str(folder / "runs")}
    )
    return base.replace({**JOB, **values, "data.packing": packing})


def subjects_of(
    bench: Bench, folder: Path, families: Sequence[str], steps: int
) -> tuple[dict[str, Subject], dict[str, str]]:
    """name → subject, and family → why it is not in this version."""
    found: dict[str, Subject] = {}
    missing: dict[str, str] = {}
    for family in families:
        for packing in PACKINGS:
            try:
                job = job_of(folder, family, packing)
            except Refused as refused:
                missing[family] = refused.message
                continue
            name = f"{family} {packing}"
            found[name] = bench.subject(name, job, CUTS, shrunk=False, steps=steps, batch=BATCH)
    return found, missing


def matrix(
    bench: Bench,
    folder: Path,
    *,
    ranks: int,
    least: int,
    seed: int,
    steps: int = STEPS,
    first: Sequence[Mapping[str, Any]] = (),
) -> Matrix:
    """Pairs of everything for up to ``ranks`` ranks, then triples until there are ``least`` cases."""
    subjects, missing = subjects_of(bench, folder, list(FAMILIES), steps)
    plain = next(iter(subjects.values())).facts

    def facts_of(row: Mapping[str, Any]) -> Facts:
        subject = subjects.get(f"{row['family']} {row['packing']}")
        return plain if subject is None else subject.facts

    values = {"family": tuple(FAMILIES), **factors(ranks)}
    may = allowed(ranks, facts_of)
    may_large = allowed(LARGEST, facts_of)
    fixed = [dict(row) for row in first] or must()
    rows = covering(
        values,
        lambda row: may(row) or (product(row) > ranks and may_large(row) and _asked(row, fixed, ranks)),
        first=fixed,
        least=least,
        seed=seed,
    )
    planned = []
    for row in rows:
        layout = layout_of(row, facts_of(row))
        assert layout is not None
        why = missing.get(row["family"], "") or absent(layout, facts_of(row))
        planned.append(Planned(f"{row['family']} {row['packing']}", layout, "", why))
    return Matrix(subjects, planned, len(uncovered(values, rows)))


def must() -> list[dict[str, Any]]:
    """The combinations of three and four axes, experts where they need some, and two families for each of them."""
    alone = dict.fromkeys(("dp", "fsdp", "tp", "pp", "cp", "ep", "etp"), 1)
    rows = []
    for number, axes in enumerate(MUST):
        families = MOE if "ep" in axes else ("dense", "tied")
        for family in families:
            row = {**alone, **axes, "family": family, "compile": "off"}
            rows.append(row | ({"schedule": SCHEDULES[number % len(SCHEDULES)]} if "pp" in axes else {}))
    return rows


def _asked(row: Mapping[str, Any], fixed: Sequence[Mapping[str, Any]], ranks: int) -> bool:
    return any(ranks < product(f) == product(row) and all(row[k] == v for k, v in f.items()) for f in fixed)


def prove_matrix(
    folder: Path,
    *,
    ranks: int = 8,
    least: int = 120,
    seed: int = 0,
    legs: tuple[bool, bool] = (True, False),
    steps: int = STEPS,
    only: str = "",
    chosen: Callable[[Sequence[Planned]], Sequence[Planned]] = lambda planned: planned,
    on_case: Callable[[Case], None] = lambda case: None,
    listed: bool = False,
) -> Proofs | Sequence[Planned]:
    """Run it; the evidence is in ``folder/runs/matrix-prove``."""
    write_corpus(folder / "corpus")
    with ExitStack() as held:
        bench = open_bench(load_job(job_of(folder, "dense")), held, lambda field, text: None)
        made = matrix(bench, folder, ranks=ranks, least=least, seed=seed, steps=steps)
        planned = [p for p in chosen(made.planned) if only in f"{p.subject} {p.layout}"]
        if listed:
            return planned
        work = lambda: run_all(bench, made.subjects, planned, legs, on_case, refused=made.refused)  # noqa: E731
        found: Proofs = bench.guarded(f"{len(planned)} layouts", work)
        return found


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="make prove", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--least", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--leg", choices=("fp64", "both"), default="fp64")
    parser.add_argument("--only", default="", help="cases whose family, packing and layout hold this text")
    parser.add_argument("--out", default="", help="folder of the evidence; default a temporary one")
    parser.add_argument("--list", action="store_true", help="print the cases, run none")
    asked = parser.parse_args(argv)
    folder = Path(asked.out or tempfile.mkdtemp(prefix="paceline-prove-")).resolve()
    found = prove_matrix(
        folder,
        ranks=asked.ranks,
        least=asked.least,
        seed=asked.seed,
        legs=(True, asked.leg == "both"),
        only=asked.only,
        on_case=lambda case: print(case_line(case.to_dict(), case.number, case.of), flush=True),
        listed=asked.list,
    )
    if not isinstance(found, Proofs):
        for planned in found:
            print(f"{planned.subject:<20} {planned.layout}  {planned.absent}".rstrip())
        return 0
    print(summary(found.to_dict()))
    for case in found.cases:
        if case.first is not None:
            print(f"  {case.planned.subject} {case.planned.layout}: {case.first.headline}; {case.first.axis}")
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

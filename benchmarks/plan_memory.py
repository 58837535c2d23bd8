"""Memory by the planner's formulas against the dry run of the real code: allocated bytes of the fullest rank.

The dry run counts every storage of one optimizer step on fake tensors, which ``tests/recipes/dry`` holds to what
torch's allocator gives out; the formulas (``paceline/plan/cost/peak.py``) are closed forms. Prints both, their ratio
and the parts that differ most, and exits 1 where one is beyond 3 %. Router: both deal tokens to experts evenly.

    python -m benchmarks.plan_memory [--only TEXT]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.plan_memory_cases import CASES, Case
from paceline.plan.cluster import parse_cluster
from paceline.plan.cost.step import memory_of
from paceline.plan.search import speeds_of
from paceline.recipes.dry.memory import Kind
from paceline.recipes.dry.step import Question, fake_step

BAR = 0.03
MIB = 2**20
CLUSTER = parse_cluster("8xH100-SXM-80GB")


@dataclass(frozen=True)
class Ran:
    """The dry run's fullest rank at its fullest moment."""

    rank: int
    moment: str
    held: Mapping[Kind, int]

    @property
    def allocated(self) -> int:
        return sum(self.held.values())


@dataclass(frozen=True)
class Compared:
    """What the planner says, by its purposes, and what was held."""

    parts: Mapping[str, float]
    allocated: float
    ran: Ran

    @property
    def off(self) -> float:
        return self.allocated / self.ran.allocated - 1

    @property
    def good(self) -> bool:
        return abs(self.off) <= BAR


def compare(case: Case, ran: Ran | None = None) -> Compared:
    """``ran``: what :func:`run` gave, where it has been run already."""
    speeds = speeds_of(CLUSTER, None, case.precision)
    parts, allocated, _, _ = memory_of(case.asked, case.work, speeds, CLUSTER)
    return Compared(parts, float(allocated), ran or run(case))


def run(case: Case, last: bool = True) -> Ran:
    """The dry run of the first rank of every coordinate of the pipeline, and of the ``last`` rank of all."""
    layout, (rows, count) = case.asked, case.shape
    firsts = range(0, layout.world_size, layout.world_size // layout.pp)
    found = []
    for rank in sorted({*firsts, layout.world_size - 1} if last else firsts):
        asked = Question(case.job, case.widths, layout, rank, case.precision, rows=rows, count=count)
        moment, held = fake_step(asked).peak()
        found.append(Ran(rank, str(moment), held))
    return max(found, key=lambda one: one.allocated)


PAIRS = {
    "states": (
        ("weights", "gradients", "optimizer"),
        (Kind.WEIGHTS, Kind.GRADIENTS, Kind.OPTIMIZER),
    ),
    "working weights": (
        ("cast weights", "gathered weights", "buckets", "whole gradients"),
        (Kind.WORKING_WEIGHTS,),
    ),
    "activations and temporaries": (
        ("activations", "scatter buffers"),
        (Kind.ACTIVATIONS, Kind.TEMPORARIES, Kind.OTHER),
    ),
}
"""Purposes of the planner beside kinds of the dry run: the finest groups in which both count the same."""


def differences(found: Compared) -> dict[str, float]:
    """Planner less dry run, MiB, the largest first."""
    each = {
        name: sum(found.parts.get(purpose, 0.0) for purpose in purposes)
        - sum(found.ran.held[kind] for kind in held)
        for name, (purposes, held) in PAIRS.items()
    }
    counted = {purpose for purposes, _ in PAIRS.values() for purpose in purposes}
    assert counted >= set(found.parts), set(found.parts) - counted
    return {name: size / MIB for name, size in sorted(each.items(), key=lambda item: -abs(item[1]))}


def row(case: Case, found: Compared) -> str:
    numbers = f"{found.allocated / MIB:9.1f} {found.ran.allocated / MIB:9.1f} {found.off:+7.1%}"
    most = ", ".join(f"{name} {size:+.1f}" for name, size in list(differences(found).items())[:2])
    return f"{case!s:48s} {numbers} {'' if found.good else '!'} {found.ran.moment}: {most}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    only = parser.parse_args().only
    chosen = [case for case in CASES if only in str(case)]
    print(
        f"{'model, precision, layout, micro-batches':48s}   planner   dry run     off   MiB; moment: differences"
    )
    beyond, worst, began = [], 0.0, time.perf_counter()
    for case in chosen:
        found = compare(case)
        print(row(case, found), flush=True)
        worst = max(worst, abs(found.off))
        beyond += [] if found.good else [case]
    seconds = time.perf_counter() - began
    print(f"{len(chosen)} layouts, {len(beyond)} beyond {BAR:.0%}, worst {worst:.1%}, {seconds:.0f} s")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())

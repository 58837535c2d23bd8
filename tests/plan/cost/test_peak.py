"""The planner's memory against the dry run of the real code, on some layouts of ``benchmarks/plan_memory.py``."""

from __future__ import annotations

import pytest

from benchmarks.plan_memory import BAR, CLUSTER, compare, differences, run
from benchmarks.plan_memory_cases import CASES, DENSE, MIXTURES, Case
from paceline.plan.cost.held import places
from paceline.plan.cost.peak import moments, rank_of
from paceline.plan.cost.step import memory_of
from paceline.plan.search import speeds_of

SOME = (
    Case("single,mbs=2,recompute=selective"),
    Case("fsdp=4,mbs=1", precision="bf16"),
    Case("fsdp=2,mbs=1", length=128),
    Case("fsdp=2,cp=2,mbs=2"),
    Case("pp=2:gpipe,mbs=2", micros=4),
    Case("single,mbs=2,recompute=full", "wide", "bf16"),
    Case("fsdp=2,tp=2,mbs=2", "gpt2", "bf16"),
    Case("fsdp=2,ep=2,mbs=2", "moe", "bf16"),
    Case("fsdp=2,tp=2,ep=2,etp=2,mbs=2", "moe", "bf16"),
)
"""Each was beyond the bar once, or is the only one of its kind."""


@pytest.mark.parametrize("case", SOME, ids=str)
def test_allocated_bytes_are_those_of_the_dry_run(case: Case) -> None:
    found = compare(case, run(case, last=False))
    assert abs(found.off) <= BAR, f"{found.off:+.1%} at {found.ran.moment}: {differences(found)} MiB"


def test_some_are_of_the_benchmark_which_has_what_it_promises() -> None:
    assert set(SOME) <= set(CASES)
    assert len(DENSE) >= 30
    assert len(MIXTURES) >= 15
    assert len(set(CASES)) == len(CASES)
    assert sum(case.asked.ep > 1 for case in MIXTURES) >= 10


@pytest.mark.parametrize("case", CASES, ids=str)
def test_allocated_is_in_reserved_and_that_in_what_the_device_has(case: Case) -> None:
    found = predicted(case)
    assert 0 < found[0] < found[1] < found[2]
    assert sum(found[3].values()) == pytest.approx(found[0])


def test_the_fullest_moment_follows_from_the_step() -> None:
    """A long row fills the head, a large vocabulary its gradients, a short row fsdp's scattering."""
    assert fullest(Case("single,mbs=2")) == "head"
    assert fullest(Case("single,mbs=2", "wide")) == "turn"
    assert fullest(Case("single,mbs=2,recompute=full")) == "layer"
    assert fullest(Case("fsdp=2,mbs=1", length=128)) == "behind"


def predicted(case: Case) -> tuple[float, float, float, dict[str, float]]:
    """Allocated, reserved, device, and the parts of the first."""
    speeds = speeds_of(CLUSTER, None, case.precision)
    parts, *sizes = memory_of(case.asked, case.work, speeds, CLUSTER)
    return (*(float(size) for size in sizes), parts)  # type: ignore[return-value]


def fullest(case: Case) -> str:
    """The moment of one rank without a pipeline."""
    layout, work = case.asked, case.work
    ((held, _, place),) = places(layout, work.widths, work.sequence_length)
    found = moments(rank_of(layout, work, held, place))
    return max(found, key=lambda moment: sum(found[moment].values()))

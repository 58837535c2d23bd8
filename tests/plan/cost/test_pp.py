"""The closed forms of a pipeline against the clock that runs its order."""

from __future__ import annotations

import itertools

import pytest

from paceline.job import Job
from paceline.plan.cluster import parse_cluster
from paceline.plan.cost import pp
from paceline.plan.layout import Layout
from paceline.plan.pipeline.clock import simulate
from paceline.plan.pipeline.counts import takes
from paceline.plan.rehearse import Rehearsal
from paceline.plan.search import plan

JOB = {
    "model.preset": "llama-3.2-1b",
    "data.sequence_length": 2048,
    "train.steps": 3000,
    "train.global_batch_size": 64,
}

SCHEDULES = [
    ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4), ("zero-bubble", 2), ("zbv", 2),
    ("dualpipev", 2),
]  # fmt: skip


# Numbers that the schedule takes, fewer than there are ranks among them.
CASES = [
    (schedule, vpp, ranks, micros)
    for schedule, vpp in SCHEDULES
    for ranks in (2, 4, 8)
    for micros in (1, 2, 3, 5, 8, 16, 32)
    if takes(Layout(pp=ranks, schedule=schedule, vpp=vpp), micros)
]


@pytest.mark.parametrize(("schedule", "vpp", "ranks", "micros"), CASES)
def test_waiting_and_keeping_are_those_of_the_order(schedule: str, vpp: int, ranks: int, micros: int) -> None:
    layout = Layout(pp=ranks, schedule=schedule, vpp=vpp)
    ran = simulate(layout, micros)
    one = 3.0 * vpp  # forward and both backwards of one micro-batch through the stages of a rank
    assert ran.makespan_s - micros * one == pytest.approx(pp.waiting(layout, micros) * (ranks - 1) * one)
    if schedule == "zbv" and micros < 2 * ranks - 1:
        return  # its order is cut short: it keeps less than the form says
    assert [live / vpp for live in ran.live] == [pp.in_flight(layout, r, micros) for r in range(ranks)]


SLOWER = ("400Gbit", "40Gbit", "1Gbit", "1Mbit")


@pytest.mark.parametrize(
    "layout",
    [
        f"dp={dp},pp={pp}:{schedule},mbs=1"
        for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev")
        for dp, pp in ((4, 4), (2, 8), (8, 2))
    ],
)
def test_a_pipeline_over_two_hosts_slows_down_with_the_network(layout: str) -> None:
    """Two stages of four share a host; the stream between the second and the third still leaves it."""
    closed, run = [], []
    for inter in SLOWER:
        job = Job().replace(JOB | {"cluster.link.inter": inter})
        found = plan(
            job, cluster=parse_cluster("2x8xH100-SXM-80GB"), measured=None, layout=layout, tokens=10**9
        )
        again = Rehearsal(found.question).again(found.best)
        assert again is not None
        closed.append(found.best.step_s[1])
        run.append(again.step_s[1])
    for seconds in (closed, run):
        assert all(slow > quick for quick, slow in itertools.pairwise(seconds)), (layout, seconds)
        assert seconds[-1] > 1000 * seconds[0]
    # The closed form also counts what the last rank of a V hands to itself: of two ranks half of all.
    counted = 2 if "pp=2:zbv" in layout or "pp=2:dualpipev" in layout else 1
    assert run[-1] == pytest.approx(closed[-1] / counted, rel=0.25), "both see the same messages"


def test_a_pipeline_inside_a_host_asks_nothing_of_the_network() -> None:
    cluster, found = parse_cluster("2x8xH100-SXM-80GB"), set()
    for inter in SLOWER:
        job = Job().replace(JOB | {"cluster.link.inter": inter})
        found.add(plan(job, cluster=cluster, measured=None, layout="pp=8,mbs=4", tokens=10**9).best.step_s)
    assert len(found) == 1


def test_the_slowest_network_is_not_where_a_pipeline_is_chosen() -> None:
    """A plan over hosts that a slow network cannot feed is not better than one on a host of its own."""
    best = {}
    for inter in ("400Gbit", "10Gbit", "1Gbit", "1Mbit"):
        job = Job().replace(JOB | {"cluster.link.inter": inter})
        best[inter] = plan(job, cluster=parse_cluster("4x8xH100-SXM-80GB"), measured=None, tokens=10**9).best
    steps = [one.step_s[1] for one in best.values()]
    assert all(slow >= quick * 0.98 for quick, slow in itertools.pairwise(steps)), steps
    assert best["1Mbit"].scope == "host"

"""The closed forms of a pipeline against the clock that runs its order."""

from __future__ import annotations

import pytest

from paceline.plan.cost import pp
from paceline.plan.layout import Layout
from paceline.plan.pipeline.clock import simulate
from paceline.plan.pipeline.counts import takes

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

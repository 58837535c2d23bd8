"""What schedules cost: held to the published bubbles, and to arithmetic by hand."""

from __future__ import annotations

import itertools

import pytest

from paceline.plan.layout import Layout
from paceline.plan.pipeline.clock import Seconds, simulate
from paceline.plan.pipeline.counts import takes
from paceline.plan.pipeline.orders import SCHEDULES


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_of_one_stage_a_rank(schedule: str) -> None:
    """Narayanan et al. 2021: idle is (p − 1)/m of the ideal time m·(F + B)."""
    for pp, micro_batches in ((2, 2), (4, 8), (8, 32)):
        found = simulate(Layout(pp=pp, schedule=schedule), micro_batches)
        assert found.makespan_s == 3 * (micro_batches + pp - 1)
        assert set(found.idle_s) == {3 * (pp - 1)}
        assert found.bubble == pytest.approx((pp - 1) / (micro_batches + pp - 1))


def test_memory_is_what_the_schedules_promise() -> None:
    assert simulate(Layout(pp=4, schedule="gpipe"), 16).live == (16,) * 4
    assert simulate(Layout(pp=4), 16).live == (4, 3, 2, 1)
    assert simulate(Layout(pp=4, schedule="zbv"), 16).peak_micro_batches == 4
    interleaved = simulate(Layout(pp=4, schedule="interleaved", vpp=2), 16)
    assert interleaved.live[0] == 11  # (vpp − 1)·pp + 2·(pp − 1) forwards ahead, and the one in work
    assert interleaved.peak_micro_batches == 5.5


def test_interleaving_divides_the_bubble() -> None:
    """(p − 1)/(v·m) of the ideal time."""
    for vpp in (2, 4):
        found = simulate(Layout(pp=4, schedule="interleaved", vpp=vpp), 8)
        assert set(found.idle_s) == {3 * 3}
        assert sum(s.end_s - s.start_s for s in found.slots[0]) == 3 * 8 * vpp


def test_splitting_the_backward_fills_the_bubble() -> None:
    plain = simulate(Layout(pp=4), 8).bubble
    split = simulate(Layout(pp=4, schedule="zero-bubble", vpp=2), 8).bubble
    zbv = simulate(Layout(pp=4, schedule="zbv"), 8)
    assert zbv.bubble <= split < plain
    assert set(zbv.idle_s) == {3.0}  # only the start and end of the V: forward, inputs and weights all alike


def test_by_hand() -> None:
    """Two stages, one slower; a transfer of 0.5."""
    seconds = [Seconds(1.0, 1.0, 1.0), Seconds(2.0, 2.0, 2.0)]
    found = simulate(Layout(pp=2, schedule="gpipe"), 2, seconds, transfer_s=0.5)
    rows = [[(str(s.action), s.start_s, s.end_s) for s in row] for row in found.slots]
    assert rows[0] == [("0F0", 0, 1), ("0F1", 1, 2), ("0B0", 10, 12), ("0B1", 14, 16)]
    assert rows[1] == [("1F0", 1.5, 3.5), ("1F1", 3.5, 5.5), ("1B0", 5.5, 9.5), ("1B1", 9.5, 13.5)]
    assert found.makespan_s == 16
    assert found.idle_s == (10, 4)


def test_what_a_joined_forward_sends_leaves_after_its_backward() -> None:
    layout = Layout(pp=2, schedule="dualpipev")
    found = simulate(layout, 6)
    receiver = {str(s.action).strip("+"): s for s in found.slots[1]}
    joined = next(s for s in found.slots[0] if s.action.joined and s.action.stage == 0)
    after = found.slots[0][found.slots[0].index(joined) + 1]
    assert receiver[f"1F{joined.action.micro_batch}"].start_s >= after.end_s > joined.end_s


def test_every_schedule_does_all_its_work() -> None:
    for schedule in SCHEDULES:
        layout = Layout(pp=3, schedule=schedule)
        for micro_batches in filter(lambda m: takes(layout, m), range(1, 13)):
            found = simulate(layout, micro_batches)
            for row in found.slots:
                assert sum(s.end_s - s.start_s for s in row) == 3 * micro_batches * layout.vpp
                assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(row))

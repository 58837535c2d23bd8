"""What makes an order wrong, and that no order of ours is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.plan.layout import Layout
from paceline.plan.pipeline.check import problems
from paceline.plan.pipeline.counts import takes
from paceline.plan.pipeline.orders import SCHEDULES, Action, Order, orders


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_order_can_run(schedule: str) -> None:
    for pp in (2, 3, 4):
        layout = Layout(pp=pp, schedule=schedule)
        for micro_batches in filter(lambda m: takes(layout, m), range(1, 20)):
            assert problems(orders(layout, micro_batches), layout, micro_batches) == []


def test_wrong_orders_are_named() -> None:
    layout = Layout(pp=2)
    good = orders(layout, 3)

    def wrong(rank: int, change: Order) -> str:
        found = list(good)
        found[rank] = change
        return "; ".join(problems(found, layout, 3))

    assert wrong(0, good[0][:-1]) == "stage 0, micro-batch 2: has F, needs F and B, or F, I and W"
    assert "0F0 twice" in wrong(0, [good[0][0], *good[0]])
    assert "rank 0: 0B0 before 0F0" in wrong(0, [Action(0, "B", 0), *good[0]])
    assert "belongs to rank 0" in wrong(1, [*good[1], Action(0, "F", 0)])
    assert "has FW" in wrong(0, [replace(a, kind="W") if a.kind == "B" else a for a in good[0]])


def test_an_order_in_which_two_ranks_wait_for_each_other_is_found() -> None:
    words = ("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")
    found = [[Action.parse(word) for word in row.split()] for row in words]
    assert problems(found, Layout(pp=2), 2) == [
        "rank 0 waits for ever at 0B0",
        "rank 1 waits for ever at 1F1",
    ]

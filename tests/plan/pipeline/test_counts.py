"""Which numbers of micro-batches run (B040): tried on the installed torch."""

from __future__ import annotations

import pytest

from paceline.plan.layout import Layout
from paceline.plan.pipeline.counts import allowed_micro_batches, nearest, refuses, takes
from paceline.plan.pipeline.orders import SCHEDULES
from tests.plan.pipeline.torch_orders import make


@pytest.mark.parametrize("pp", [2, 3, 4, 7])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_counts_are_those_of_torch(schedule: str, pp: int) -> None:
    layout = Layout(pp=pp, schedule=schedule)
    for micro_batches in range(1, 41):
        try:
            make(schedule, pp, layout.vpp, micro_batches)
        except (ValueError, AssertionError):
            assert refuses(layout, micro_batches), micro_batches
        else:
            assert refuses(layout, micro_batches) is None, micro_batches


def test_fewer_micro_batches_than_stages_are_refused_with_the_counts_that_run() -> None:
    """B040: pp 4, two micro-batches."""
    assert refuses(Layout(pp=4), 2) == "pp=4:1f1b cannot run 2 micro-batches a step: it takes 4, 5, 6, 7, …"
    assert nearest(Layout(pp=4), 2) == 4
    assert nearest(Layout(pp=4, schedule="dualpipev"), 3) == 8
    assert refuses(Layout(pp=4, schedule="gpipe"), 1) is None
    assert refuses(Layout(), 1) is None


def test_nearest_prefers_more_micro_batches_of_the_same_size() -> None:
    layout = Layout(pp=4, schedule="interleaved")
    assert not takes(layout, 9)
    assert nearest(layout, 9) == 10
    assert allowed_micro_batches(layout, 14) == [10, 12, 15, 16]
    assert nearest(layout, 12) == 12

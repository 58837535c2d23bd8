"""The price of each layout against sums that can be done by hand."""

from __future__ import annotations

from typing import ClassVar

import pytest

from paceline.plan.cost import dp, fsdp, single
from paceline.plan.cost.held import Held, held_by
from paceline.plan.cost.step import estimate, memory_of
from paceline.plan.cost.terms import Work, micro_batches, padding_rows
from paceline.plan.layout import Layout
from paceline.plan.model import parameters
from paceline.plan.speed.speeds import Group
from tests.plan.answers import machine
from tests.plan.test_model import Shape

WORK = Work(Shape(), sequence_length=64, global_batch=8, precision="fp32")
P = parameters(Shape()).total


def held(layout: Layout, place: int = 0) -> Held:
    return held_by(layout, WORK.widths)[place]


ALL = held(Layout())


class Flat:
    """Every rate is one: a second a block, a second a collective of any size."""

    precision = "fp32"
    overlaps = False
    base_bytes = 1000
    sigma: ClassVar[dict[str, float]] = {}
    assumed = ()

    def peak_flops(self, world: int) -> float:
        return 1.0

    def block_s(self, kind: object, sequence_length: int, mbs: float, world: int, tp: int = 1) -> float:
        return 1.0 * mbs

    def outer_s(self, widths: object, sequence_length: int, mbs: float, world: int) -> float:
        return 0.5 * mbs

    def optimizer_s(self, parameters: float, world: int) -> float:
        return parameters / P

    def copy_s(self, size_bytes: float, world: int) -> float:
        return 0.0

    def collective_s(self, op: str, size_bytes: float, group: Group) -> float:
        return 1.0 if group.ranks > 1 else 0.0


class Overlapping(Flat):
    overlaps = True


def test_micro_batches_have_one_shape_and_their_padding_is_counted() -> None:
    assert micro_batches(Layout.parse("dp=2,mbs=2"), 8) == (2, 2)
    assert micro_batches(Layout.parse("dp=3"), 8) == (3, 1)
    assert padding_rows(Layout.parse("dp=3"), 8) == 1
    assert micro_batches(Layout.parse("dp=2,mbs=3"), 8) == (2, 2)
    assert padding_rows(Layout.parse("dp=3,mbs=2"), 8) == 4


def test_dealing_is_that_of_the_data() -> None:
    from paceline.compute.data.batches import _Deal

    for ranks in (1, 2, 3, 5):
        for mbs in (1, 2, 3, 7, None):
            for batch in (1, 5, 8, 32):
                deal = _Deal.of(batch, 0, ranks, mbs)
                assert micro_batches(Layout(dp=ranks, mbs=mbs), batch) == (deal.rows, deal.count)


def test_single_is_compute_optimizer_and_host() -> None:
    found = estimate(Layout.parse("single,mbs=2"), WORK, Flat(), machine())
    assert found.seconds["compute"] == pytest.approx(8 * (2 * 1.0 + 0.5))
    assert found.seconds["deliver"] == 0.0
    assert found.seconds["update"] == pytest.approx(1.0)
    assert found.seconds["host"] == pytest.approx(single.STEP_S + 4 * single.MICRO_BATCH_S)
    assert found.step_s == pytest.approx(sum(found.seconds.values()))
    assert found.sent_bytes == 0


def test_padding_is_part_of_compute_and_named() -> None:
    found = estimate(Layout.parse("dp=3"), WORK, Flat(), machine())
    assert found.padding_s == pytest.approx(found.seconds["compute"] / 9)


def test_the_stages_gather_and_scatter_as_the_docstring_says() -> None:
    calls = {
        # zero stage: (gathers, scatters) of each of the 3 units, with 4 micro-batches
        "zero3": (8, 4),
        "zero2": (1, 4),
        "zero1": (1, 1),
    }
    for stage, (gathers, scatters) in calls.items():
        layout = Layout.parse(f"fsdp=2:{stage},mbs=1")
        found = fsdp.deliver(layout, WORK, Flat(), 2, held(layout), 0.0)
        assert found.total_s == pytest.approx(3 * (gathers + scatters)), stage
        assert found.exposed_s == found.total_s
        assert found.sent_bytes == pytest.approx(P * 4 * (gathers + scatters) / 2)


def test_dp_sums_once_a_step_and_only_shards_beside_fsdp() -> None:
    alone = dp.deliver(Layout.parse("dp=2,mbs=1"), WORK, Flat(), 2, ALL, 0.0)
    assert alone.total_s == pytest.approx(1.0)
    assert alone.sent_bytes == pytest.approx(P * 4)
    both = dp.deliver(Layout.parse("dp=2,fsdp=2,mbs=1"), WORK, Flat(), 4, ALL, 0.0)
    assert both.sent_bytes == pytest.approx(P * 4 / 2)


def test_overlap_hides_what_compute_covers() -> None:
    layout = Layout.parse("fsdp=2,mbs=4")
    found = fsdp.deliver(layout, WORK, Overlapping(), 8, ALL, 1e6)
    assert found.exposed_s == pytest.approx(2.0)
    slow = fsdp.deliver(layout, WORK, Overlapping(), 8, ALL, 0.0)
    assert slow.exposed_s > found.exposed_s
    assert dp.deliver(Layout.parse("dp=2"), WORK, Overlapping(), 8, ALL, 1e6).exposed_s == pytest.approx(1.0)


def test_states_are_cut_by_fsdp_and_not_by_dp() -> None:
    def states(text: str) -> float:
        parts = memory_of(Layout.parse(text), WORK, Flat(), machine())[0]
        return parts["weights"] + parts["optimizer"]

    assert states("single,mbs=2") == pytest.approx(12 * P)
    assert states("dp=2,mbs=2") == pytest.approx(12 * P)
    assert states("fsdp=4,mbs=2") == pytest.approx(3 * P)
    assert states("dp=2,fsdp=2,mbs=2") == pytest.approx(6 * P)


def test_memory_orders_as_zero_promises() -> None:
    def device(text: str) -> float:
        return memory_of(Layout.parse(text), WORK, Flat(), machine())[3]

    assert (
        device("fsdp=4,mbs=1")
        < device("fsdp=4:zero2,mbs=1")
        < device("fsdp=4:zero1,mbs=1")
        < device("dp=4,mbs=1")
    )
    assert device("single,mbs=1") < device("single,mbs=4")

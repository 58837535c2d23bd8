"""The price of each layout against sums that can be done by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from paceline.plan.cost import cp, dp, ep, fsdp, pp, single, tp
from paceline.plan.cost.held import Held, expert_shards, held_by, rank_states
from paceline.plan.cost.step import estimate, memory_of
from paceline.plan.cost.terms import Work, micro_batches, padding_rows
from paceline.plan.layout import Layout
from paceline.plan.model import parameters
from paceline.plan.speed.speeds import Factors, Group
from tests.plan.answers import machine
from tests.plan.test_model import Shape

WORK = Work(Shape(), sequence_length=64, global_batch=8, precision="fp32")
P = parameters(Shape()).total


def held(layout: Layout, place: int = 0) -> Held:
    return held_by(layout, WORK.widths, WORK.sequence_length)[place]


ALL = held(Layout())


class Flat:
    """Every rate is one: a second a block, a second a collective of any size."""

    precision = "fp32"
    factors = Factors()
    overlaps = False
    pods = False
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
    pods = False


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


MOE = Work(
    Shape(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=96, n_shared_experts=1),
    sequence_length=64,
    global_batch=8,
    precision="fp32",
)


def messages(axis: Any, text: str, work: Work = WORK, place: int = 0) -> float:
    """Seconds = messages, of one micro-batch: a collective of any size takes one second."""
    layout = Layout.parse(text)
    found = axis.deliver(
        layout, work, Flat(), 8, held_by(layout, work.widths, work.sequence_length)[place], 1
    )
    assert found.exposed_s == found.total_s
    return float(found.total_s)


def test_messages_of_each_axis_are_those_of_its_docstring() -> None:
    # two layers of eight messages; embedding and head two each; one small reduction in the loss
    assert messages(tp, "tp=2") == 2 * 8 + 2 * 2 + 1
    assert messages(tp, "tp=2,recompute=full") == 1.5 * 2 * 8 + 2 * 2 + 1
    assert messages(cp, "cp=2") == 2 * 2
    assert messages(cp, "cp=2:ulysses") == 2 * 2
    assert messages(ep, "fsdp=2,ep=2", MOE) == 2 * 4
    assert messages(ep, "fsdp=2,ep=2,recompute=full", MOE) == 1.5 * 2 * 4
    assert messages(pp, "pp=2", place=0) == messages(pp, "pp=2", place=1) == 1
    assert (
        messages(tp, "single")
        == messages(cp, "dp=2")
        == messages(ep, "dp=2", MOE)
        == messages(pp, "dp=2")
        == 0
    )


def test_sent_bytes_are_those_of_the_formulas() -> None:
    def sent(axis: Any, text: str, work: Work = WORK) -> float:
        layout = Layout.parse(text)
        return float(
            axis.deliver(
                layout, work, Flat(), 8, held_by(layout, work.widths, work.sequence_length)[0], 1
            ).sent_bytes
        )

    stream, w = 64 * 128, 4
    assert sent(tp, "tp=2") == (2 * 8 + 2 * 2) * stream * w / 2
    # keys and values of a row: 64 tokens, two heads of 16, gathered and scattered in two layers
    assert sent(cp, "cp=2") == 2 * 2 * (64 * 2 * 32 * w) / 2
    assert sent(ep, "fsdp=2,ep=2", MOE) == pytest.approx(ep.HOTTEST * 2 * 4 * 2 * stream * w / 2)
    assert sent(pp, "pp=2") == stream * w


def test_what_a_rank_holds_adds_up_to_the_model() -> None:
    whole = parameters(MOE.widths)
    stages = held_by(Layout.parse("pp=2"), MOE.widths, MOE.sequence_length)
    assert sum(part.total for part in stages) == whole.total
    assert (stages[0].embeds, stages[0].predicts, stages[1].predicts) == (True, False, True)
    (spread,) = held_by(Layout.parse("fsdp=4,ep=4"), MOE.widths, 1)
    assert spread.experts == whole.experts / 4
    assert spread.dense == whole.total - whole.experts
    assert held_by(Layout.parse("pp=2:zbv"), replace(MOE.widths, num_hidden_layers=4), 1)[0].predicts


def test_expert_state_is_sharded_over_the_ranks_with_the_same_experts_only() -> None:
    layout = Layout.parse("fsdp=4,ep=2")
    (part,) = held_by(layout, MOE.widths, MOE.sequence_length)
    assert expert_shards(layout) == 2
    assert rank_states(layout, part) == part.dense / 4 + part.experts / 2
    assert rank_states(Layout.parse("dp=4,ep=2"), part) == part.total
    assert rank_states(Layout.parse("fsdp=2,cp=2"), ALL) == ALL.total / 4


def memory(text: str, work: Work = WORK) -> float:
    return memory_of(Layout.parse(text), work, Flat(), machine())[3]


def test_each_axis_makes_the_fullest_rank_smaller() -> None:
    deep = replace(WORK, widths=replace(WORK.widths, num_hidden_layers=8))
    for smaller, larger in (
        ("tp=2,mbs=8", "single,mbs=8"),
        ("tp=4,mbs=8", "tp=2,mbs=8"),
        ("cp=2,mbs=8", "single,mbs=8"),
        ("pp=2,mbs=4", "single,mbs=4"),
        ("pp=4,mbs=2", "pp=2,mbs=2"),
        ("pp=4,mbs=1", "pp=4:gpipe,mbs=1"),
        ("single,mbs=8,recompute=selective", "single,mbs=8"),
        ("single,mbs=8,recompute=full", "single,mbs=8,recompute=selective"),
        ("fsdp=2,tp=2,mbs=4", "fsdp=2,mbs=4"),
    ):
        assert memory(smaller, deep) < memory(larger, deep), smaller


def test_micro_batches_in_flight() -> None:
    def flying(text: str, place: int = 0) -> float:
        return pp.in_flight(Layout.parse(text), place, 8)

    assert (flying("single"), flying("pp=4:gpipe")) == (1, 8)
    assert [flying("pp=4", place) for place in range(4)] == [4, 3, 2, 1]
    assert flying("pp=4:interleaved") == 4 * (1 + 3 / 8)  # p (1 + (p-1)/(p v)), Korthikanti et al. 2022
    assert flying("pp=4:zbv") == 4


def test_waiting_orders_the_schedules_as_published() -> None:
    waits = [
        pp.waiting(Layout.parse(f"pp=4:{s}"), 16)
        for s in ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv")
    ]
    assert waits[0] == waits[1] == 1
    assert waits[2:] == sorted(waits[2:], reverse=True)


def test_a_pipeline_idles_for_one_micro_batch_of_each_other_stage() -> None:
    found = estimate(Layout.parse("pp=2,mbs=1"), WORK, Flat(), machine())
    # stages of one layer; the last one has the head as well and is the slowest: 8 micro-batches of 1.5 s
    assert found.seconds["compute"] == pytest.approx(8 * 1.5)
    assert found.seconds["idle"] == pytest.approx(1.0 + 1.0)  # the other stage's layer and its message
    assert found.step_s == pytest.approx(sum(found.seconds.values()))


def test_recompute_costs_a_forward_and_says_so() -> None:
    none, full = (
        estimate(Layout.parse(f"single,mbs=2{more}"), WORK, Flat(), machine())
        for more in ("", ",recompute=full")
    )
    assert full.seconds["compute"] == pytest.approx(4 * (2 * 2 * 4 / 3 + 1.0))
    assert full.recompute_s > 0
    assert none.recompute_s == 0


def test_tied_weights_are_summed_over_the_ends_of_a_pipeline() -> None:
    work = replace(WORK, widths=replace(WORK.widths, tie_word_embeddings=True))
    first, last = held_by(Layout.parse("pp=2"), work.widths, work.sequence_length)
    assert first.tables == last.tables == 512 * 128
    assert pp.tied(Layout.parse("pp=2"), work, Flat(), 8, first).total_s == 1
    assert pp.tied(Layout.parse("pp=2:zbv"), work, Flat(), 8, first).total_s == 0
    assert pp.tied(Layout.parse("pp=2"), WORK, Flat(), 8, first).total_s == 0

"""Just inside its factor an assumption leaves the choice as it is, just outside another layout is chosen."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from paceline.plan.answer import Plan
from paceline.plan.assumptions import assumptions
from paceline.plan.decide import decide, judge
from paceline.plan.layout import Layout
from paceline.plan.sensitivity import HALVINGS, MOST, STEPS, Leading, first_turn, leading, lines, sensitivity
from tests.plan.answers import LLAMA, ask, job, machine, measurement

CLUSTERS = ("2x4xH100-SXM-80GB", "1x8xA100-SXM-40GB", "2x2xH200-SXM-141GB", "1x4xH100-SXM-80GB")
SMALL = ("gpt2", "smollm2-135m", "qwen2.5-0.5b", "llama-3.2-1b", "tiny-moe")


def drawn(seed: int) -> Plan:
    """A random small job on a random cluster or two-core machine."""
    draw = random.Random(seed)
    if seed % 3 == 0:
        rates = draw.uniform(2e8, 5e10), draw.uniform(60e9, 90e9), draw.uniform(30e9, 80e9)
        return ask(cluster=machine(2, draw.choice((2, 16))), measured=measurement(*rates))
    table = LLAMA | {
        "model.preset": draw.choice(SMALL),
        "data.sequence_length": draw.choice((256, 512, 1024)),
        "train.global_batch_size": draw.choice((8, 16, 64)),
    }
    return ask(job(table), draw.choice(CLUSTERS))


def bare(layout: Layout) -> Layout:
    return layout.replace(mbs=None)


@pytest.mark.parametrize("seed", range(6))
def test_just_inside_the_same_just_outside_the_other(seed: int) -> None:
    plan = drawn(seed)
    question = plan.question
    assert question is not None
    known = {one.name: one for one in assumptions(question)}
    among = Leading(question, plan)
    rows = sensitivity(plan)
    assert {row.assumption.name for row in rows} == set(known)
    for row in rows:
        for turn, up in ((row.down, False), (row.up, True)):
            change = known[row.assumption.name].changed
            if turn is None:
                for step in range(1, STEPS + 1):
                    found = among.choice(change(question, MOST ** ((1 if up else -1) * step / STEPS)))
                    assert found is not None
                    assert bare(found.layout) == bare(plan.layout)
                continue
            assert (turn.factor > turn.inside >= 1) if up else (turn.factor < turn.inside <= 1)
            assert abs(math.log(turn.factor / turn.inside)) < math.log(MOST) / STEPS / 2**HALVINGS * 1.01
            here, there = (among.choice(change(question, factor)) for factor in (turn.inside, turn.factor))
            assert here is not None
            assert bare(here.layout) == bare(plan.layout)
            assert (there and there.layout) == turn.layout
            assert there is None or bare(there.layout) != bare(plan.layout)


@pytest.mark.parametrize("seed", range(0, 6, 3))
def test_of_few_layouts_the_whole_search_turns_at_the_same_place(seed: int) -> None:
    plan = drawn(seed)
    assert plan.question is not None
    everything = [c.layout for c in plan.priced] + [r.layout for r in plan.rejected]
    for row in sensitivity(plan):
        for turn in (row.down, row.up):
            if turn is None:
                continue
            for factor, same in ((turn.inside, True), (turn.factor, False)):
                changed = row.assumption.changed(plan.question, factor)
                candidates = judge(changed, everything, explain=False).candidates
                best = decide(changed, candidates)[0].layout if candidates else None
                assert (best is not None and bare(best) == bare(plan.layout)) is same


def test_at_a_factor_of_one_the_leading_choose_what_the_search_chose() -> None:
    for seed in range(6):
        plan = drawn(seed)
        assert plan.question is not None
        found = Leading(plan.question, plan).choice(plan.question)
        assert found is not None
        assert found.layout == plan.layout
        assert found.step_s == pytest.approx(plan.best.step_s, rel=1e-9)


def test_a_changed_number_changes_the_price_and_nothing_else() -> None:
    question = ask(job(LLAMA), "2x8xH100-SXM-80GB").question
    assert question is not None
    by_name = {one.name: one for one in assumptions(question)}
    assert by_name["link.inter"].value == pytest.approx(question.cluster.nic_bytes_per_s * 8 / 1e9)
    half = by_name["link.inter"].changed(question, 0.5)
    assert half.cluster == replace(question.cluster, nic_bytes_per_s=question.cluster.nic_bytes_per_s / 2)
    assert half.facts is question.facts
    twice = by_name["matmul"].changed(question, 2.0)
    assert twice.speeds.peak_flops(1) == pytest.approx(2 * question.speeds.peak_flops(1))


def test_what_was_asked_for_has_nothing_to_turn() -> None:
    assert sensitivity(ask(layout="dp=2")) == []


def test_no_turn_and_the_first_of_several() -> None:
    assert first_turn(lambda _: False, 0.1) is None
    turned = first_turn(lambda log: log > 0.33, 0.1)
    assert turned is not None
    assert turned[0] <= 0.33 < turned[1] < turned[0] + 0.1 / 2**HALVINGS * 1.01


def test_the_lines_say_what_and_where_and_never() -> None:
    told = lines(sensitivity(ask()))
    assert told[0].startswith("each of several ranks 40 GFLOP/s: × ")
    assert "→ dp=2" in told[0]
    assert any(line.endswith("never between 1/16 and 16 times") for line in told)


def test_every_scope_and_what_nearly_fits_is_among_the_leading() -> None:
    plan = ask(job(LLAMA), "2x8xH100-SXM-80GB")
    found = set(leading(plan))
    assert {candidate.layout for candidate in plan.scopes.values()} <= found
    assert {candidate.layout for candidate in plan.candidates} <= found
    near = min((r for r in plan.rejected if r.kind == "memory"), key=lambda r: r.value / r.limit)
    assert near.layout in found

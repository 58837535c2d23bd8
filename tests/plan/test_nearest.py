"""What an error tells to set instead runs, and nothing that runs is nearer."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import product

import pytest

from paceline.ledger.outcome import Refused
from paceline.plan.grammar import KINDS
from paceline.plan.layout import Layout
from paceline.plan.rules import Facts, check, first_broken, read, repair
from tests.plan.test_model import Shape

SMALL = Shape(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=512)
JOBS = {
    "two layers on processes": Facts(SMALL, global_batch=8, devices=2, cpu=True, sequence_length=64),
    "eight devices": Facts(
        replace(SMALL, num_hidden_layers=8), global_batch=8, devices=8, sequence_length=48
    ),
    "odd sizes": Facts(
        replace(SMALL, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=3),
        global_batch=7,
        devices=6,
        sequence_length=36,
    ),
    "experts": Facts(
        replace(SMALL, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=64),
        global_batch=12,
        devices=8,
        sequence_length=64,
    ),
    "hosts": Facts(
        replace(SMALL, num_hidden_layers=12), global_batch=64, devices=16, hosts=4, sequence_length=64
    ),
}
AXES = ("dp", "fsdp", "tp", "pp", "cp", "ep", "etp")


@pytest.mark.parametrize(
    ("text", "job", "use"),
    [
        ("pp=2:zbv", "two layers on processes", "pp=2"),
        ("dp=9", "eight devices", "dp=8"),
        ("pp=2,mbs=8", "eight devices", "pp=2,mbs=4"),
        ("fsdp=2,tp=3", "eight devices", "fsdp=2,tp=2"),
        ("cp=3:ulysses", "eight devices", "cp=3"),
        ("pp=4:interleaved,vpp=4", "eight devices", "pp=4:interleaved"),
        ("pp=3:zbv,fsdp=2", "eight devices", "fsdp=2:zero2,pp=3:zbv"),
    ],
)
def test_the_nearest(text: str, job: str, use: str) -> None:
    assert str(repair(Layout.parse(text), JOBS[job])) == use


@pytest.mark.parametrize("name", JOBS)
def test_what_is_told_runs_on_the_job(name: str) -> None:
    facts, refused = JOBS[name], 0
    for layout in _some(random.Random(name), 120, axes=4, most=12):
        if first_broken(layout, facts) is None:
            continue
        refused += 1
        with pytest.raises(Refused) as caught:
            check(layout, facts)
        use = Layout.parse(caught.value.use.removeprefix("--layout "))
        assert first_broken(use, facts) is None, (layout, use)
        assert all(use.degree(axis) <= layout.degree(axis) for axis in AXES)
    assert refused > 60


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    "text",
    [
        "vpp=2",
        "vpp=2,mbs=99",
        "pp",
        "pp=2:zvb",
        "zero=2,pp=2:zbv",
        "dp9",
        "ddp=9,tp=x",
        "fsdp=auto,tp=5",
        "ep=auto",
    ],
)
def test_what_a_mistake_in_the_text_is_answered_with_runs_too(text: str, name: str) -> None:
    with pytest.raises(Refused) as caught:
        check(read(text, JOBS[name]), JOBS[name])
    use = Layout.parse(caught.value.use.removeprefix("--layout "))
    check(use, JOBS[name])


@pytest.mark.parametrize("name", JOBS)
def test_nothing_that_runs_is_nearer(name: str) -> None:
    facts = JOBS[name]
    for layout in _some(random.Random(f"near {name}"), 25, axes=2, most=9):
        told = repair(layout, facts)
        least = min(
            _distance(layout, one, facts) for one in _less(layout, facts) if not first_broken(one, facts)
        )
        assert _distance(layout, told, facts) == pytest.approx(least), (layout, told)


def _some(dice: random.Random, count: int, *, axes: int, most: int) -> list[Layout]:
    found = []
    for _ in range(count):
        layout = Layout(**{axis: dice.randint(2, most) for axis in dice.sample(AXES, dice.randint(1, axes))})
        kinds = {"zero": KINDS["fsdp"], "schedule": KINDS["pp"], "cp_kind": ("allgather", "ulysses")}
        layout = layout.replace(**{name: dice.choice(words) for name, words in kinds.items()})
        if layout.pp > 1 and dice.random() < 0.3:
            layout = layout.replace(vpp=dice.randint(1, 5))
        found.append(layout.replace(mbs=dice.choice((None, 1, 2, 3, 5, 8, 64))))
    return found


def _less(layout: Layout, facts: Facts) -> list[Layout]:
    """Every layout that asks for no more."""
    found: list[Layout] = []
    for degrees in product(*(range(1, layout.degree(axis) + 1) for axis in AXES)):
        cut = layout.replace(vpp=0, **dict(zip(AXES, degrees, strict=True)))
        for zero, schedule, kind in product(KINDS["fsdp"], KINDS["pp"], ("allgather", "ulysses")):
            one = cut.replace(zero=zero, schedule=schedule, cp_kind=kind)
            if (one.zero, one.schedule, one.cp_kind) != (zero, schedule, kind):
                continue
            same = schedule == layout.schedule and one.pp > 1
            for vpp in {one.default_vpp, *(range(1, layout.vpp + 1) if same else ())}:
                staged = one.replace(vpp=vpp)
                if first_broken(staged.replace(mbs=None), facts):
                    continue
                rows = staged.data_rows(facts.global_batch)
                sizes = range(1, rows + 1) if layout.mbs is not None else (None,)
                found += [staged.replace(mbs=mbs) for mbs in sizes]
    return found


def _distance(asked: Layout, other: Layout, facts: Facts) -> float:
    """As the module states it, said again."""
    total = 0.0
    for axis in AXES:
        if asked.degree(axis) != other.degree(axis):
            doublings = math.log2(asked.degree(axis) / other.degree(axis))
            total += 0.5 + doublings * (0.5 if axis in ("ep", "etp") else 1)
    total += 0.5 * (other.fsdp > 1 and asked.zero != other.zero)
    total += 0.5 * (other.cp > 1 and asked.cp_kind != other.cp_kind)
    if other.pp > 1 and asked.schedule != other.schedule:
        total += 0.5
    elif other.pp > 1:
        total += abs(math.log2(other.vpp / asked.vpp)) / 8
    if asked.mbs != other.mbs and asked.mbs and other.mbs:
        rows = other.data_rows(facts.global_batch)
        total += abs(math.log2(other.mbs / asked.mbs)) / 16 + 0.5 * (-rows % other.mbs) / rows
    return total

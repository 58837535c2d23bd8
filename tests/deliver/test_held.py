"""What each rank holds: every element of every parameter, on ranks that agree who they are, summed once over all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product

import pytest

from paceline.deliver.held import Held, held, hold
from paceline.deliver.mesh import members
from paceline.plan.layout import Layout, chunk


@dataclass(frozen=True)
class C:
    axis: str
    dim: int
    units: int
    repeats: bool = False


KINDS = {
    "norm": ((8,), ()),
    "column": ((24, 8), (C("tp", 0, 4),)),
    "few heads": ((16, 8), (C("tp", 0, 2, repeats=True),)),
    "row": ((8, 22), (C("tp", 1, 11),)),
    "vocabulary": ((101, 8), (C("tp", 0, 101),)),
    "experts": ((8, 6, 4), (C("ep", 0, 8), C("etp", 1, 6))),
}

LAYOUTS = [
    "dp=2,fsdp=2,tp=2,pp=2",
    "fsdp=2,tp=4",
    "tp=4",
    "fsdp=2,cp=2,tp=2",
    "dp=2,cp=2",
    "fsdp=4,tp=2,ep=4",
    "dp=2,tp=2,ep=2",
    "fsdp=2,tp=2,pp=2,ep=4",
    "dp=2,tp=2,ep=2,etp=2",
    "dp=3",
    "pp=2,cp=2,tp=2,ep=2",
]


def everyone(layout: Layout, kind: str, stages: tuple[int, ...] | None = None) -> list[Held]:
    shape, cuts = KINDS[kind]
    own = [(layout.coordinates(r)["pp"],) if stages is None else stages for r in range(layout.world_size)]
    return [hold(shape, cuts, layout, r, own[r]) for r in range(layout.world_size)]


def elements(layout: Layout, rank: int, mine: Held) -> set[tuple[int, ...]]:
    """Indices that a rank holds after fsdp has sharded dim 0 as FSDP2 does."""
    rows = range(mine.extent[0])
    if layout.fsdp > 1:
        group = members(layout, rank, "edp" if mine.expert else "fsdp")
        rows = chunk(mine.extent[0], len(group), group.index(rank))
    rest = [range(a, a + n) for a, n in zip(mine.starts[1:], mine.extent[1:], strict=True)]
    return set(product([mine.starts[0] + r for r in rows], *rest))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", LAYOUTS)
def test_replicas_are_the_ranks_with_the_same_elements(text: str, kind: str) -> None:
    layout = Layout.parse(text)
    every = everyone(layout, kind)
    here = [elements(layout, r, h) for r, h in enumerate(every)]
    for rank, mine in enumerate(every):
        stage = members(layout, rank, "stage")
        same = tuple(r for r in stage if here[r] == here[rank])
        if here[rank]:
            assert mine.replicas == same
        assert set().union(*(here[r] for r in stage)) == set(product(*(range(n) for n in mine.shape)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", LAYOUTS)
def test_every_element_counts_once(text: str, kind: str) -> None:
    """Σ over ranks of elements / replicas is the number of elements, in each stage: what the norm relies on."""
    layout = Layout.parse(text)
    every = everyone(layout, kind)
    counted: Counter[tuple[int, ...]] = Counter()
    for rank, mine in enumerate(every):
        if layout.coordinates(rank)["pp"] == 0:
            for index in elements(layout, rank, mine):
                counted[index] += 1 / len(mine.replicas)  # type: ignore[assignment]
    assert all(abs(count - 1) < 1e-12 for count in counted.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", LAYOUTS)
def test_gradients_of_all_data_meet(text: str, kind: str) -> None:
    """What the wrapper has summed, with what is left to sum, reaches every rank that saw other tokens or heads."""
    layout = Layout.parse(text)
    for rank, mine in enumerate(everyone(layout, kind)):
        if mine.expert:
            wrapped = set(members(layout, rank, "edp")) if layout.fsdp > 1 else {rank}
            assert wrapped | set(mine.to_sum) == set(members(layout, rank, "edp"))
            continue
        at = layout.coordinates(rank)
        whole = len([r for r in mine.to_sum if layout.coordinates(r)["dp"] == at["dp"]])
        assert rank in mine.to_sum
        if layout.fsdp > 1:
            assert {layout.coordinates(r)["dp"] for r in mine.to_sum} == {at["dp"]}
        elif text != "dp=3":
            assert set(mine.to_sum) == set(mine.replicas)
        else:
            assert mine.to_sum == (rank,)
        assert whole >= 1


def test_a_tied_weight_is_summed_over_both_stages() -> None:
    layout = Layout.parse("tp=2,pp=3")
    shape, cuts = KINDS["vocabulary"]
    mine = hold(shape, cuts, layout, 0, (0, 2))
    assert mine.replicas == mine.to_sum == (0, 4)
    assert hold(shape, cuts, layout, 5, (0, 2)).to_sum == (1, 5)


def test_fewer_key_heads_than_ranks_are_repeated_and_summed() -> None:
    layout = Layout.parse("tp=4")
    parts = everyone(layout, "few heads")
    assert [h.starts[0] for h in parts] == [0, 0, 8, 8]
    assert [h.to_sum for h in parts] == [(0, 1), (0, 1), (2, 3), (2, 3)]


def test_units_are_balanced() -> None:
    features, rows = C("tp", 0, 11), C("tp", 0, 101)
    assert [held(features, 4, i) for i in range(4)] == [range(3), range(3, 6), range(6, 9), range(9, 11)]
    assert [held(rows, 2, i).stop for i in range(2)] == [51, 101]


@pytest.mark.parametrize("cut", [C("tp", 0, 3, repeats=True), C("tp", 0, 2)])
def test_what_would_be_counted_twice_is_not_repeated(cut: C) -> None:
    with pytest.raises(ValueError, match="cannot be shared out"):
        held(cut, 4, 0)

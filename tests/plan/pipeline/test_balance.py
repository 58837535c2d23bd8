"""Stages of equal weight: exact against every possible cut."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from paceline.plan.layout import balanced
from paceline.plan.pipeline.balance import split


def weights(cut: list[range], costs: list[float], first: float, last: float) -> list[float]:
    found = [sum(costs[i] for i in layers) for layers in cut]
    found[0] += first
    found[-1] += last
    return found


def every_cut(layers: int, stages: int) -> list[list[range]]:
    cuts = itertools.combinations_with_replacement(range(layers + 1), stages - 1)
    found = [[range(a, b) for a, b in itertools.pairwise((0, *cut, layers))] for cut in cuts]
    return [cut for cut in found if all(len(part) for part in cut[1:-1])]


def test_no_cut_has_a_lighter_heaviest_stage() -> None:
    draw = random.Random(0)
    for _ in range(60):
        costs = [draw.choice([1.0, 2.0, 3.0, 7.0, draw.random()]) for _ in range(draw.randint(2, 8))]
        first, last = draw.choice([0, 1, 5]), draw.choice([0, 2, 9.5])
        stages = draw.randint(1, min(5, len(costs) + 2))
        cut = split(costs, first, last, stages)
        assert [i for part in cut for i in part] == list(range(len(costs)))
        assert all(len(part) for part in cut[1:-1])
        best = min(max(weights(one, costs, first, last)) for one in every_cut(len(costs), stages))
        assert max(weights(cut, costs, first, last)) == pytest.approx(best, rel=1e-12)


def test_layers_that_are_all_alike_are_cut_as_before() -> None:
    for layers in range(1, 30):
        for stages in range(1, layers + 1):
            wanted = [balanced(layers, stages, stage) for stage in range(stages)]
            assert split([3] * layers, 0, 0, stages) == wanted


def test_a_heavy_head_takes_the_place_of_layers() -> None:
    assert split([1] * 10, 0, 4, 2) == [range(7), range(7, 10)]
    assert split([1] * 4, 0, 9, 3) == [range(2), range(2, 4), range(4, 4)]  # the last only predicts
    assert split([1, 1], 9, 9, 4) == [range(0), range(1), range(1, 2), range(2, 2)]
    assert split([5, 1, 1], 0, 0, 1) == [range(3)]


def test_a_large_model_takes_no_time() -> None:
    began = time.monotonic()
    cut = split([1_700_000_000] * 126, 0, 2_100_000_000, 32)
    assert time.monotonic() - began < 1.5
    assert max(len(part) for part in cut) == 4
    assert len(cut[-1]) == 2


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="3 layers cannot fill 6 stages"):
        split([1] * 3, 0, 0, 6)
    with pytest.raises(ValueError, match="negative"):
        split([1, -1], 0, 0, 2)

"""Tensor parallelism: the stream, and a vocabulary that does not divide."""

from __future__ import annotations

import pytest

from tests.deliver.tp_cases import LENGTH, VOCAB, WIDTH
from tests.pool import RankPool

CASES = "tests.deliver.tp_cases"


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "options",
    [{}, {"tied": True}, {"cap": 2.0}, {"masked": "all"}],
    ids=["plain", "tied", "cap", "nothing valid"],
)
def test_a_vocabulary_that_does_not_divide_gives_the_same_loss_and_gradients(
    ranks: RankPool, count: int, options: dict[str, object]
) -> None:
    """B041: 101 rows over 2 and 4 ranks. A batch without a valid target gives zero, not NaN (B008)."""
    for found in ranks(count).run(f"{CASES}:embed_and_predict", **options):
        assert {name: e for name, e in found.items() if e > 1e-12} == {}


@pytest.mark.parametrize("count", [2, 4])
def test_rows_that_are_elsewhere_give_exact_zeros_and_no_gradient(ranks: RankPool, count: int) -> None:
    found = ranks(count).run(f"{CASES}:lookup")
    assert [row for result in found for row in result["rows"]] == list(range(VOCAB))
    for result in found:
        assert result["zeros"]
        assert result["held"]
        assert result["gradient"]


def test_the_part_of_known_tokens_is_that_of_the_spread_sum(ranks: RankPool) -> None:
    assert all(ranks(4).run(f"{CASES}:parts"))


def test_tokens_that_do_not_divide_are_refused_with_a_length_that_does(ranks: RankPool) -> None:
    assert all("sequence_length = 8" in use for use in ranks(2).run(f"{CASES}:uneven"))


@pytest.mark.parametrize("count", [2, 4])
def test_a_cut_sub_layer_costs_one_gather_and_one_sum_each_way(ranks: RankPool, count: int) -> None:
    whole_bytes = LENGTH * WIDTH * 8
    for calls in ranks(count).run(f"{CASES}:traffic"):
        assert calls == [("all_gather", whole_bytes), ("reduce_scatter", whole_bytes)] * 2

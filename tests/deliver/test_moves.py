"""Collectives with a gradient: against one process, under every caller that plays tricks with autograd."""

from __future__ import annotations

import pytest

from tests.deliver.moves_cases import HOW
from tests.pool import RankPool

CASES = "tests.deliver.moves_cases"


@pytest.mark.parametrize("count", [2, 4])
def test_each_equals_one_process_forward_and_backward(ranks: RankPool, count: int) -> None:
    assert max(ranks(count).run(f"{CASES}:moves")) <= 1e-12


def test_every_dtype_is_summed_in_itself(ranks: RankPool) -> None:
    for found in ranks(4).run(f"{CASES}:dtypes"):
        assert found == dict.fromkeys(found, 0.0)


def test_one_row_is_not_copied(ranks: RankPool) -> None:
    assert ranks(2).run(f"{CASES}:copies") == [[True, True]] * 2


@pytest.mark.parametrize("how", HOW)
def test_holds_in_recompute_split_backward_and_compile(ranks: RankPool, how: str) -> None:
    assert max(ranks(2).run(f"{CASES}:sub_layer", how=how, timeout_s=120)) <= 1e-12

"""Pairwise covering: every pair that may be, none that may not, the same rows every time."""

from __future__ import annotations

from itertools import product
from typing import Any

from paceline.plan.covering import covering, uncovered

FACTORS = {"a": (1, 2, 3), "b": (1, 2, 4), "c": ("x", "y"), "d": (False, True), "e": (0, 1, 2)}


def anything(row: Any) -> bool:
    return True


def together(row: Any) -> bool:
    """a·b is at most 4, and d needs a = 2."""
    return row["a"] * row["b"] <= 4 and (not row["d"] or row["a"] == 2)


def test_every_pair_is_covered_with_few_rows() -> None:
    rows = covering(FACTORS, anything)
    assert uncovered(FACTORS, rows) == []
    assert 9 <= len(rows) <= 20, "the product has 108"


def test_only_impossible_pairs_are_left_out() -> None:
    rows = covering(FACTORS, together)
    assert all(map(together, rows))
    possible = [
        dict(zip(FACTORS, values, strict=True))
        for values in product(*FACTORS.values())
        if together(dict(zip(FACTORS, values, strict=True)))
    ]
    for pair in uncovered(FACTORS, rows):
        assert not any(pair <= set(row.items()) for row in possible), pair


def test_a_value_that_needs_another_beside_it_is_found() -> None:
    """Experts need ranks: the plain values of the other factors are not enough."""
    factors = {"ep": (1, 2, 4), "dp": (1, 2, 4), "tp": (1, 2)}
    rows = covering(factors, lambda row: row["dp"] * row["tp"] % row["ep"] == 0)
    assert {row["ep"] for row in rows} == {1, 2, 4}


def test_first_rows_are_in_it_and_more_are_added_until_there_are_enough() -> None:
    rows = covering(FACTORS, together, first=[{"a": 1, "b": 4, "e": 2}], least=30)
    assert (rows[0]["a"], rows[0]["b"], rows[0]["e"]) == (1, 4, 2)
    assert len(rows) >= 30
    assert len({tuple(row.items()) for row in rows}) == len(rows), "no row twice"


def test_the_same_seed_gives_the_same_rows() -> None:
    assert covering(FACTORS, together, seed=3) == covering(FACTORS, together, seed=3)
    assert covering(FACTORS, together, seed=3) != covering(FACTORS, together, seed=4)

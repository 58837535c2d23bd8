"""The order is a bijection of each epoch, another one in each, and a pure function of (seed, position)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.compute.data.hashing import mix_array, mix_int
from paceline.compute.data.order import Group, Order, permute
from paceline.ledger.outcome import Exit, Refused


@given(st.integers(1, 3000), st.integers(-(2**70), 2**70), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_permute_is_a_bijection(rows: int, seed: int, epoch: int) -> None:
    assert sorted(permute(np.arange(rows), rows, seed, epoch).tolist()) == list(range(rows))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_both_spellings_of_splitmix64_agree(values: list[int]) -> None:
    assert mix_array(np.array(values, np.uint64)).tolist() == [mix_int(v) for v in values]


def test_splitmix64_is_the_published_one() -> None:
    """First output of the reference generator seeded with 0 and with 1234567."""
    assert mix_int(0) == 0xE220A8397B1DCDAF
    assert mix_int(1234567) == 6457827717110365317


@given(st.integers(2, 500), st.integers(0, 9), st.data())
@settings(max_examples=40, deadline=None)
def test_every_row_once_in_each_epoch_and_any_slice_agrees(rows: int, seed: int, data: st.DataObject) -> None:
    order = Order(seed, rows)
    three = order.rows_at(np.arange(3 * rows))
    for epoch in range(3):
        assert sorted(three[epoch * rows : (epoch + 1) * rows].tolist()) == list(range(rows))
    at = data.draw(st.integers(0, 3 * rows - 1))
    assert order.row_at(at) == three[at]
    assert order.epoch_at(at) == at // rows


def test_epochs_and_seeds_differ() -> None:
    """B136: not the same order in every epoch."""
    orders = {
        tuple(Order(seed, 50).rows_at(np.arange(50) + 50 * epoch).tolist())
        for seed in (7, 8)
        for epoch in range(4)
    }
    assert len(orders) == 8


@pytest.mark.parametrize("rows", [2, 3, 5, 7])
def test_small_permutations_are_fair(rows: int) -> None:
    """Each row stands at each place about equally often (binomial, five standard deviations)."""
    epochs = 600
    seen = np.zeros((rows, rows))
    for epoch in range(epochs):
        seen[np.arange(rows), permute(np.arange(rows), rows, 3, epoch)] += 1
    expected = epochs / rows
    assert np.abs(seen - expected).max() < 5 * np.sqrt(epochs * (1 / rows) * (1 - 1 / rows))


def test_neighbours_are_torn_apart() -> None:
    order = Order(1, 10_000).rows_at(np.arange(10_000)).astype(float)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05


def test_the_same_for_ever() -> None:
    """A change of this order would change every run that is resumed: it needs a decision record."""
    assert Order(7, 10).rows_at(np.arange(20)).tolist() == FIRST_TWENTY


FIRST_TWENTY = [2, 3, 4, 9, 5, 1, 7, 6, 0, 8, 0, 7, 9, 1, 4, 3, 8, 5, 6, 2]


def test_weighted_sources_keep_their_shares_and_walk_each_their_own_epochs() -> None:
    groups = (Group("small", 0, 10, 1.0), Group("large", 10, 1000, 3.0))
    order = Order(5, 1010, groups)
    rows = order.rows_at(np.arange(1 << 16))
    assert (rows < 10).mean() == pytest.approx(0.25, abs=1e-5)
    small = rows[rows < 10]
    for epoch in range(20):
        assert sorted(small[10 * epoch : 10 * epoch + 10].tolist()) == list(range(10))
    large = rows[rows >= 10] - 10
    assert sorted(large[:1000].tolist()) == list(range(1000))
    assert (rows[:2000] < 10).mean() == pytest.approx(0.25, abs=0.05)
    # across the end of a window, one source goes on where it was
    after = order.rows_at(np.arange((1 << 16) - 50, (1 << 16) + 50))
    assert after[:50].tolist() == rows[-50:].tolist()
    border = np.concatenate([rows[-200:], order.rows_at(np.arange(1 << 16, (1 << 16) + 200))])
    small = border[border < 10]
    used = ((rows < 10).sum() - (rows[-200:] < 10).sum()) % 10  # draws of the epoch that the window cuts
    whole = small[(10 - used) % 10 :]
    assert set(whole[: len(whole) // 10 * 10].reshape(-1, 10).sum(1).tolist()) == {45}


def test_tiny_weights_still_come() -> None:
    order = Order(5, 100_010, (Group("rare", 0, 10, 1e-9), Group("rest", 10, 100_000, 1.0)))
    assert (order.rows_at(np.arange(1 << 16)) < 10).sum() == 1


def test_nothing_to_order_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        Order(0, 0)
    assert caught.value.exit_code == Exit.DATA

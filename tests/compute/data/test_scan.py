"""The hold-out follows the content: never empty, never everything, the same beside other documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.compute.data.scan import RECORD, hold_out
from paceline.ledger.outcome import Exit, Refused


def records(hashes: list[int], groups: list[int] | None = None) -> np.ndarray:
    found = np.zeros(len(hashes), RECORD)
    found["hash"] = np.array(hashes, np.uint64)
    found["group"] = groups or 0
    return found


@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=50), st.floats(1e-6, 1 - 1e-6))
def test_never_empty_never_everything_and_copies_stay_together(hashes: list[int], fraction: float) -> None:
    held = hold_out(records(hashes), fraction)
    assert 0 < held.sum() < len(hashes)
    if len(set(hashes)) > 1:
        sides = {h: {bool(s) for g, s in zip(hashes, held, strict=True) if g == h} for h in hashes}
        assert all(len(side) == 1 for side in sides.values())


def test_the_fraction_is_met_and_a_document_keeps_its_side() -> None:
    hashes = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64).tolist()
    held = hold_out(records(hashes), 0.05)
    assert held.mean() == pytest.approx(0.05, abs=0.005)
    fewer = hold_out(records(hashes[5000:]), 0.05)
    np.testing.assert_array_equal(fewer, held[5000:])
    more = hold_out(records(hashes), 0.1)
    assert (more | ~held).all(), "a larger fraction holds out the same documents and more"


def test_each_named_source_keeps_and_holds_out() -> None:
    held = hold_out(records([1, 2, 2**64 - 2, 2**64 - 1, 5], [0, 0, 1, 1, 2]), 0.5)
    assert held.tolist() == [True, False, True, False, False]


def test_one_document_cannot_be_held_out() -> None:
    with pytest.raises(Refused) as caught:
        hold_out(records([1]), 0.5)
    assert caught.value.exit_code == Exit.DATA
    assert caught.value.key == "data.eval"

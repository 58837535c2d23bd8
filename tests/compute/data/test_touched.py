"""A touched set has other rows and ids where it says so, and is the set itself everywhere else."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paceline.compute.data.batches import BatchPlan
from paceline.compute.data.order import Order
from paceline.compute.data.packing import IGNORE, PackedSet
from paceline.compute.data.prepare import prepare
from paceline.compute.data.spec import DataSpec
from paceline.compute.data.touched import Touch, TouchedSet

T = 8


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    """Documents of 4, 11 and 20 letters, with an end each: borders at 5 and 17 of the stream."""
    folder = tmp_path_factory.mktemp("touched")
    for number, size in enumerate((4, 11, 20)):
        (folder / f"{number}.txt").write_text("abcdefghij"[number] * size)
    (folder / "held.txt").write_text("held out text, long enough")
    spec = DataSpec.of(str(folder / "[0-9].txt"), str(folder / "held.txt"), tokenizer="bytes")
    return PackedSet(prepare(spec, folder / "cache", workers=1), "train", T, "masked")


def test_borders_are_where_segments_change(packed: PackedSet) -> None:
    rows, columns = packed.borders(100)
    found = set(zip(rows.tolist(), columns.tolist(), strict=True))
    expected = set()
    for number in range(packed.rows):
        segments = packed.row(number).segments
        assert segments is not None
        whole = number < packed.rows - 1  # the last row's padding is a segment too
        expected |= {(number, c) for c in range(1, T) if whole and segments[c] != segments[c - 1]}
    assert found == expected
    assert len(found) == 2
    assert packed.borders(1)[0].size == 1


def test_a_row_stands_in_for_another_and_an_id_is_its_predecessors_target(packed: PackedSet) -> None:
    touched = TouchedSet(packed, Touch(rows=((0, 2),), ids=((0, 3, 200), (1, 2, 201))))
    right = packed.row(2)
    found = touched.row(0)
    assert found.tokens.tolist() == [*right.tokens[:3], 200, *right.tokens[4:]]
    assert found.targets[2] == (200 if right.targets[2] != IGNORE else IGNORE)
    assert np.array_equal(touched.row(3).tokens, packed.row(3).tokens)
    assert touched.valid_tokens(np.array([0, 1])).tolist() == packed.valid_tokens(np.array([2, 1])).tolist()
    assert np.array_equal(packed.row(0).tokens, TouchedSet(packed, Touch()).row(0).tokens)


def test_a_target_across_a_border_still_does_not_count(packed: PackedSet) -> None:
    (row, column), *_ = zip(*(each.tolist() for each in packed.borders(100)), strict=True)
    touched = TouchedSet(packed, Touch(ids=((row, column, 77),))).row(row)
    assert touched.tokens[column] == 77
    assert touched.targets[column - 1] == IGNORE


@pytest.mark.parametrize("degree", [1, 2])
def test_every_layout_sees_the_same_touch(packed: PackedSet, degree: int) -> None:
    touched = TouchedSet(packed, Touch(rows=((0, 2),), ids=((1, 2, 201),)))
    order = Order(3, packed.rows)
    plans = [BatchPlan(touched, order, packed.rows, rank, degree, 1) for rank in range(degree)]
    rows = {
        int(b.rows[0]): b.arrays["tokens"][0]
        for plan in plans
        for b in plan.micro_batches(0)
        if b.rows[0] >= 0
    }
    assert sorted(rows) == list(range(packed.rows))
    assert rows[1][2] == 201
    assert np.array_equal(rows[0], rows[2])


def test_a_touch_is_the_same_after_json() -> None:
    touch = Touch(rows=((0, 2),), ids=((1, 2, 201),))
    assert Touch.read(json.loads(json.dumps(touch.to_dict()))) == touch
    assert Touch.read({}) == Touch()

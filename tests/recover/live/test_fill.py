"""A rank's memory filled from that of others: same blocks, other blocks, other widths; what is nowhere is refused."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.ledger.outcome import Failed
from paceline.recover.buffer import Buffer
from paceline.recover.live.arena import Arena, Entry, open_shared, path_of
from paceline.recover.live.fill import fill
from paceline.recover.slices import Box, whole

WHOLE = np.arange(35, dtype=np.float32).reshape(7, 5)


def arena(*blocks: tuple[slice, slice], dtype: str = "F32", padded: int = 0) -> Arena:
    """A memory with one block of the whole, values included, and ``padded`` bytes after it."""
    ((rows, columns),) = blocks
    part = WHOLE[rows, columns].astype({"F32": np.float32, "F64": np.float64}[dtype])
    box = Box((rows.start, columns.start), (0, 0), part.shape)
    made = Arena(Buffer())
    made.lay_out(
        {
            "model/w": Entry(
                dtype, WHOLE.shape, (box,) if part.size else (), part.shape, part.nbytes + padded
            ),
            "optimizer/w/step": Entry("F32", (), tuple(whole(())), (), 4),
        }
    )
    made.bytes("model/w")[: part.nbytes] = np.frombuffer(part.tobytes(), np.uint8)
    made.bytes("optimizer/w/step").view(np.float32)[:] = 9.0
    return made


def rows(low: int, high: int) -> tuple[slice, slice]:
    return slice(low, high), slice(0, 5)


def columns(low: int, high: int) -> tuple[slice, slice]:
    return slice(0, 7), slice(low, high)


def test_a_table_is_read_by_whoever_opens_the_memory() -> None:
    made = arena(rows(2, 5), padded=20)
    found = Arena(open_shared(path_of(made.buffer)))
    assert found.table == made.table
    assert found.table["model/w"].nbytes == 80
    assert found.table["model/w"].at % 64 == 0
    assert np.array_equal(found.bytes("model/w"), made.bytes("model/w"))


@pytest.mark.parametrize("dtype", ["F32", "F64"])
@pytest.mark.parametrize(
    ("target", "sources"),
    [
        (rows(0, 7), [rows(0, 7)]),
        (rows(0, 7), [rows(0, 7), rows(0, 7), rows(0, 7)]),
        (rows(2, 5), [rows(0, 3), rows(3, 6), rows(6, 7)]),
        (rows(0, 7), [columns(0, 2), columns(2, 4), columns(4, 5)]),
        (columns(1, 4), [rows(0, 3), rows(3, 6), rows(6, 7), rows(0, 3)]),
        (rows(7, 7), [rows(0, 7)]),
    ],
)
def test_every_element_comes_from_where_it_is(
    target: tuple[slice, slice], sources: list[tuple[slice, slice]], dtype: str
) -> None:
    into = arena(target, dtype=dtype)
    expected = into.bytes("model/w").copy()
    into.bytes("model/w")[:] = 255
    into.bytes("optimizer/w/step")[:] = 255
    fill(into, [arena(block, dtype=dtype) for block in sources])
    assert np.array_equal(into.bytes("model/w"), expected)
    assert into.bytes("optimizer/w/step").view(np.float32)[0] == 9.0


def test_what_is_nowhere_is_told() -> None:
    with pytest.raises(Failed, match="model/w is in no memory that is whole") as caught:
        fill(arena(rows(2, 5)), [arena(rows(0, 3)), arena(rows(4, 7))])
    assert "10 of 15 elements from [2, 0] on" in caught.value.seen


def test_padding_is_left_alone() -> None:
    into = arena(rows(0, 2), padded=20)
    into.bytes("model/w")[-20:] = 7
    fill(into, [arena(rows(0, 7))])
    assert (into.bytes("model/w")[-20:] == 7).all()

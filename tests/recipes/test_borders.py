"""What a layout cuts is met by the data of a proof, and what is not is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.compute.data.packing import IGNORE, PackedSet
from paceline.compute.data.prepare import prepare
from paceline.compute.data.spec import DataSpec
from paceline.compute.data.touched import TouchedSet
from paceline.recipes.borders import EDGE, INSIDE, Met, meet, places, vocabulary_borders

T, V = 16, 257
TAKEN = [0, 1, 2, 3, 4, 5, 6, 7]


def packed_of(folder: Path, sizes: list[int], packing: str = "masked", length: int = T) -> PackedSet:
    """Documents of so many letters, with an end each."""
    for number, size in enumerate(sizes):
        (folder / f"{number:03d}.txt").write_text(f"{number:05d}"[:size].ljust(size, "x"))
    (folder / "held.txt").write_text("held out text, long enough for it")
    spec = DataSpec.of(str(folder / "[0-9]*.txt"), str(folder / "held.txt"), tokenizer="bytes")
    return PackedSet(prepare(spec, folder / "cache", workers=1), "train", length, packing)


def of(packed: PackedSet, *, tp: int = 1, cp: int = 1, vocab: int = V) -> Met:
    return meet(packed, TAKEN, vocab, V, tp={1, tp}, cp={1, cp})


def borders(packed: PackedSet, met: Met) -> set[tuple[int, int]]:
    """(row, column) of the documents that begin inside the first step's rows."""
    rows = TouchedSet(packed, met.touch)
    found = set()
    for number in TAKEN:
        segments = rows.row(number).segments
        assert segments is not None
        found |= {(number, int(c)) for c in np.flatnonzero(np.diff(segments)) + 1}
    return found


def test_rows_with_documents_are_chosen_where_the_first_step_has_none(tmp_path: Path) -> None:
    packed = packed_of(tmp_path, [400, *range(17, 60)])
    assert not [row for row in packed.borders(100)[0] if row in TAKEN]
    met = of(packed, cp=2)
    columns = {column for _, column in borders(packed, met)}
    assert {4, 8, 12} <= columns, "each edge of the four chunks"
    assert {column // 4 for column in columns if column % 4} == {0, 1, 2, 3}, "and inside each"
    assert met.notes == (
        f"{len(met.touch.rows)} rows of the first step chosen so that documents begin at 7 of 7 places of cp shards",
    )


def test_rows_that_meet_every_place_are_left(tmp_path: Path) -> None:
    packed = packed_of(tmp_path, [3] * 100)
    met = of(packed, cp=2)
    assert met.touch.rows == ()
    assert met.notes[0].startswith("the first step's rows are such that documents begin at ")


def test_what_no_row_has_is_said(tmp_path: Path) -> None:
    met = of(packed_of(tmp_path, [900]), cp=2)
    assert met.touch.rows == ()
    assert met.notes == (
        "not met: a document that begins at the edge at token 4, 8, 12 of a row cut by cp=2",
        "not met: a document that begins inside the chunk at token 0, 4, 8, 12 of a row cut by cp=2",
    )


@pytest.mark.parametrize("packing", ["concat", "none"])
def test_documents_that_are_not_masked_need_not_be_met(tmp_path: Path, packing: str) -> None:
    assert of(packed_of(tmp_path, [900], packing), cp=2) == of(packed_of(tmp_path, [900], packing))
    assert of(packed_of(tmp_path, [900], packing), cp=2).notes == ()


def test_places_of_a_chunk_of_one_token_are_edges_only() -> None:
    assert places(2, 4) == [(2, EDGE, 1), (2, EDGE, 2), (2, EDGE, 3)]
    assert (2, INSIDE, 4) in places(2, 16)


@pytest.mark.parametrize(("tp", "vocab"), [(2, V), (4, V), (2, 300)])
def test_every_vocabulary_border_is_looked_up_and_aimed_at(tmp_path: Path, tp: int, vocab: int) -> None:
    packed = packed_of(tmp_path, [900])
    met = of(packed, tp=tp, vocab=vocab)
    rows = [TouchedSet(packed, met.touch).row(number) for number in TAKEN]
    wanted = vocabulary_borders(vocab, V, {tp})
    assert wanted <= {int(t) for row in rows for t in row.tokens}
    assert wanted <= {int(t) for row in rows for t in row.targets}
    assert met.notes == (f"{len(met.touch.ids)} ids replaced so that every vocabulary border is met",)
    assert len({(row, column) for row, column, _ in met.touch.ids}) == len(wanted)
    for row in rows:
        counts = row.targets[:-1] != IGNORE
        assert np.array_equal(row.tokens[1:][counts], row.targets[:-1][counts]), "a target is the next token"


def test_vocabulary_borders() -> None:
    assert vocabulary_borders(257, 257, {1}) == set()
    assert vocabulary_borders(257, 257, {2}) == {0, 128, 129, 256}
    assert vocabulary_borders(300, 257, {2}) == {0, 149, 150, 257, 299}, "rows 257 … 299 no text has"


def test_borders_for_which_there_is_no_place_are_named(tmp_path: Path) -> None:
    packed = packed_of(tmp_path, [900], length=2)
    met = meet(packed, [0, 1], V, V, tp={4}, cp=set())
    replaced = {token for _, _, token in met.touch.ids}
    left = sorted(vocabulary_borders(V, V, {4}) - replaced)
    assert len(replaced) == 2
    assert met.notes == (
        f"2 ids replaced; not met: vocabulary rows {', '.join(map(str, left))}, for want of places",
    )

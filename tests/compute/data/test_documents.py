"""Documents come out whole, in order, in bounded pieces; bad ones are refused with their place or skipped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.compute.data.documents import Document, Reader, _blocks
from paceline.compute.data.sources import as_items, resolve
from paceline.ledger.outcome import Exit, Refused


def read(path: Path, **options: object) -> list[Document]:
    reader = Reader(**options)  # type: ignore[arg-type]
    return [document for file in resolve(as_items(str(path))) for document in reader.read(file)]


@given(st.text(max_size=300), st.integers(8, 40))
def test_blocks_join_to_the_text_and_each_is_utf8(text: str, block: int) -> None:
    import io

    data = text.encode()
    pieces = list(_blocks(io.BytesIO(data), block))
    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= block for piece in pieces)
    for piece in pieces:
        piece.decode("utf-8")


@pytest.mark.parametrize("other", [True, False])
def test_bad_utf8_names_file_offset_and_line(tmp_path: Path, other: bool) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good line\n" * 200 + b"ab\xff" + b"\ntail" * 40)
    source = [str(path)]
    if other:  # read whole, not by blocks
        (tmp_path / "fine.txt").write_text("x")
        source.append(str(tmp_path / "fine.txt"))
    with pytest.raises(Refused) as caught:
        for file in resolve(as_items(source)):
            list(Reader().read(file))
    error = caught.value
    assert error.exit_code == Exit.DATA
    assert error.where == f"{path}:201"
    assert "0xff" in error.seen
    assert "offset 2002" in error.seen
    assert "iconv" in error.use


def test_a_character_cut_by_the_end_of_the_file_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "cut.txt"
    path.write_bytes(b"x" * 63 + "é".encode()[:1])
    with pytest.raises(Refused, match="UTF-8"):
        read(path)


ROWS = [
    (b"{not json", "not JSON"),
    (b"[1, 2]", "not an object"),
    (b'{"body": "some text", "id": "7"}', "no 'text'"),
    (b'{"text": 7}', "not a text"),
    (b'{"text": "\xff"}', "not valid UTF-8"),
    (b'{"text": "\\ud800"}', "surrogate"),
    (b"[" * 100_000, "not JSON"),
]


@pytest.mark.drill(42)
@pytest.mark.parametrize(("row", "what"), ROWS)
def test_a_bad_row_stops_with_file_and_line_or_is_skipped_and_counted(
    tmp_path: Path, row: bytes, what: str
) -> None:
    path = tmp_path / "rows.jsonl"
    good = [json.dumps({"text": f"row {n}"}).encode() for n in range(3)]
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join([good[0], b"", row, *good[1:]]) + b"\n")
    with pytest.raises(Refused) as caught:
        read(path)
    assert caught.value.exit_code == Exit.DATA
    assert caught.value.where == f"{path}:3"
    assert what in caught.value.message
    reader = Reader(skip_bad=True)
    texts = [d.text for file in resolve(as_items(str(path))) for d in reader.read(file)]
    assert texts == [b"row 0", b"row 1", b"row 2"]
    assert reader.skipped == 1
    assert reader.skipped_at[0].startswith(f"{path}:3")


def test_a_missing_column_names_the_one_to_use(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"body": "some text", "id": "7"}\n')
    with pytest.raises(Refused) as caught:
        read(path)
    assert caught.value.use == 'data.text_field = "body"'
    assert [d.text for d in read(path, text_field="body")] == [b"some text"]
    path.write_text('{"messages": []}\n')
    with pytest.raises(Refused) as caught:
        read(path)
    assert "06" in caught.value.use


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int64"])
def test_ids_are_split_at_the_end_of_documents(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.array([5, 6, 0, 7, 0, 8], dtype))
    documents = read(path, eos=0, vocab=9)
    assert [d.ids.tolist() for d in documents if d.ids is not None] == [[5, 6, 0], [7, 0], [8]]
    assert [d.offset for d in documents] == [0, 3, 5]


@pytest.mark.drill(44)
def test_an_id_outside_the_vocabulary_names_file_and_index(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    ids = np.zeros(1000, np.int64)
    ids[777] = 101
    np.save(path, ids)
    with pytest.raises(Refused) as caught:
        read(path, vocab=101)
    assert caught.value.where == f"{path}[777]"
    assert "id 101 at index 777" in caught.value.seen
    ids[777] = -1
    np.save(path, ids)
    with pytest.raises(Refused, match="outside the vocabulary"):
        read(path)


@pytest.mark.parametrize("array", [np.zeros((2, 2), np.int64), np.zeros(4), np.zeros(0, np.int64)])
def test_what_is_no_array_of_ids_is_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "ids.npy", array)
    with pytest.raises(Refused) as caught:
        read(tmp_path / "ids.npy")
    assert caught.value.exit_code == Exit.DATA


@pytest.mark.drill(56)
def test_a_pickle_in_npy_and_a_torn_file_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(Refused):
        read(tmp_path / "o.npy")
    np.save(tmp_path / "t.npy", np.arange(100))
    (tmp_path / "t.npy").write_bytes((tmp_path / "t.npy").read_bytes()[:300])
    with pytest.raises(Refused):
        read(tmp_path / "t.npy")

"""Our shards are safetensors, and a file that lies is refused before memory is taken for it."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from paceline.recover import container
from paceline.recover.container import Damaged, Item, Reader


def two(path: Path) -> container.Written:
    a = np.arange(10, dtype=np.float32)
    b = np.arange(6, dtype=np.int64).reshape(2, 3)
    return container.write(
        path, [Item("a", "F32", (10,), a), Item("b", "I64", (2, 3), b)], metadata={"format": "pt"}
    )


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    written = two(path)
    found = safetensors.numpy.load_file(path)
    assert found["a"].tolist() == list(range(10))
    assert found["b"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert path.stat().st_size == written.size
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file({"w": np.arange(4, dtype=np.float16)}, path)
    with Reader(path) as reader:
        raw = reader.data("w", [container.digest(np.arange(4, dtype=np.float16))])
    assert raw.view(np.float16).tolist() == [0, 1, 2, 3]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    two(tmp_path / "x")
    with pytest.raises(FileExistsError):
        two(tmp_path / "x")


def test_blocks_are_verified_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "BLOCK_BYTES", 16)
    path = tmp_path / "x"
    written = two(path)
    assert [len(h) for h in written.hashes.values()] == [3, 3]
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1  # the last byte of a
    path.write_bytes(raw)
    with Reader(path) as reader:
        good = reader.data("a", written.hashes["a"], 4, 20)
        assert good.view(np.float32).tolist() == [1, 2, 3, 4]
        with pytest.raises(Damaged, match="32…40"):
            reader.data("a", written.hashes["a"], 20, 40)
        with pytest.raises(Damaged, match="number of blocks"):
            reader.data("a", written.hashes["a"][:2])


def craft(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def one(shape: Any, offsets: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


LIES: dict[str, tuple[Any, bytes, int | None, str]] = {
    "header longer than the file": ({}, b"", 1 << 20, "claims"),
    "header of four gigabytes": ({}, b"", 4 << 30, "claims"),
    "header of the largest number": ({}, b"", (1 << 64) - 1, "claims"),
    "not JSON": (b"{", b"", None, "not JSON"),
    "not a table": ([1], b"", None, "table"),
    "nested without end": (b"[" * 100_000, b"", None, "JSON"),
    "shape of 2^40": (one([1 << 40], [0, 4]), b"1234", None, "claims shape"),
    "offsets beyond the end": (one([1 << 40], [0, 1 << 42]), b"1234", None, "accounts for"),
    "negative shape": (one([-1, -1], [0, 4]), b"1234", None, "proper shape"),
    "a boolean as a count": (one([True], [0, 4]), b"1234", None, "proper shape"),
    "a float as a count": (one([1.0], [0, 4]), b"1234", None, "proper shape"),
    "offsets backwards": (one([1], [8, 4]), b"12345678", None, "claims shape"),
    "unknown dtype": (one([1], [0, 4], "X99"), b"1234", None, "dtype"),
    "a hole": (one([1], [4, 8]), b"12345678", None, "hole"),
    "bytes after the end": (one([1], [0, 4]), b"12345678", None, "accounts for"),
    "overlap": ({**one([1], [0, 4]), "v": one([1], [0, 4])["w"]}, b"1234", None, "overlaps"),
    "a tensor that is a number": ({"w": 3}, b"", None, "dtype"),
}


@pytest.mark.drill(58)
@pytest.mark.parametrize("name", LIES)
def test_a_lying_header_is_refused(name: str, tmp_path: Path) -> None:
    header, data, length, told = LIES[name]
    with pytest.raises(Damaged) as caught:
        Reader(craft(tmp_path / "x", header, data, length))
    assert told in caught.value.what


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    two(tmp_path / "x")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    os.mkfifo(tmp_path / "fifo")
    for name, told in (("link", "symbolic link"), ("fifo", "regular"), ("none", "missing"), (".", "regular")):
        with pytest.raises(Damaged, match=told):
            Reader(tmp_path / name)


def test_a_file_that_shrinks_is_named_and_no_descriptor_leaks(tmp_path: Path) -> None:
    written = two(tmp_path / "x")
    before = len(os.listdir("/dev/fd"))
    with Reader(tmp_path / "x") as reader:
        os.truncate(tmp_path / "x", written.size - 8)
        with pytest.raises(Damaged, match="ends at byte"):
            reader.check("a", written.hashes["a"])
    for size in range(0, written.size - 8, 7):
        os.truncate(tmp_path / "x", size) if size == 0 else (tmp_path / "x").write_bytes(b"\0" * size)
        with pytest.raises(Damaged):
            Reader(tmp_path / "x")
    assert len(os.listdir("/dev/fd")) == before


def test_what_could_not_be_read_back_does_not_count_as_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.recover.readback import ReadBack

    def broken(*_: object) -> None:
        raise RuntimeError("no memory to read into")

    monkeypatch.setattr(ReadBack, "_read", broken)
    with pytest.raises(RuntimeError, match="no memory"):
        two(tmp_path / "a.safetensors")

"""A safetensors file as bytes: written in one pass with its hashes, read with every claim of its header
checked.

The layout is the safetensors format (8-byte header length, JSON header, data without holes), so that any
reader of that format opens our shards. Written here and not by the library because each block is hashed
while it is written and the file is made durable before anybody names it. No torch: the command line
verifies a checkpoint without it.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import xxhash

from paceline.recover.readback import Block, ReadBack

BLOCK_BYTES = 8 << 20
"""Data is hashed by blocks of this size, so that part of a slice can be read and still be verified."""

DURABLE_BYTES = 64 << 20
"""So much is made durable at a time, and read back while the next is written."""

MOST_HEADER_BYTES = 100_000_000
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class Damaged(Exception):
    """A file that is not what it should be; the caller knows the checkpoint and says what to do."""

    def __init__(self, what: str, tensor: str = "", file: str = "") -> None:
        super().__init__(what)
        self.what, self.tensor, self.file = what, tensor, file


Stream = Callable[[int], Iterator[memoryview]]
"""Data that is not in memory: called with a block's size, yields all of it in such blocks, the last may be shorter."""


@dataclass(frozen=True)
class Item:
    """One tensor to be written: key, dtype by the format's name, shape, and its bytes or where they come from."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray | Stream

    @property
    def nbytes(self) -> int:
        """Bytes of the data by dtype and shape."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)

    def blocks(self) -> Iterator[memoryview]:
        """The data in blocks of BLOCK_BYTES."""
        if isinstance(self.data, np.ndarray):
            return blocks(self.data.reshape(-1).view(np.uint8).data)
        return self.data(BLOCK_BYTES)


@dataclass(frozen=True)
class Written:
    """What was written: size, header length and hash, and the block hashes of each key."""

    size: int
    header_bytes: int
    header_hash: str
    hashes: dict[str, list[str]] = field(default_factory=dict)


def digest(data: Any) -> str:
    """xxh3-128 of a buffer, as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def write(
    path: Path,
    items: Sequence[Item],
    *,
    metadata: Mapping[str, str],
    wrote: Callable[[], None] = lambda: None,
) -> Written:
    """Write a new file, make it durable, and read it back; never overwrites. ``wrote`` is called after each block.

    Raises:
        OSError: as the system says it. Damaged: what was written does not read back.
    """
    ordered = sorted(items, key=lambda item: (-ITEM_BYTES[item.dtype], item.key))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for item in ordered:
        offsets = [at, at + item.nbytes]
        header[item.key] = {"dtype": item.dtype, "shape": list(item.shape), "data_offsets": offsets}
        at += item.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    hashes: dict[str, list[str]] = {item.key: [] for item in ordered}
    with open(path, "xb", buffering=0) as file:
        fd, back = file.fileno(), ReadBack(path)
        try:
            _write_all(fd, memoryview(head))
            part, place = [Block(0, len(head), digest(head), "")], len(head)
            for item in ordered:
                end = place + item.nbytes
                for block in item.blocks():
                    _write_all(fd, block)
                    hashes[item.key].append(digest(block))
                    part.append(Block(place, len(block), hashes[item.key][-1], item.key))
                    place += len(block)
                    if place - part[0].start >= DURABLE_BYTES:
                        os.fdatasync(fd)
                        back.durable(part)
                        part = []
                    wrote()
                if place != end:
                    raise ValueError(f"{item.key}: {place - end} bytes too many, by its shape")
            os.fsync(fd)
            if part:
                back.durable(part)
        finally:
            wrong = back.finish()
    if wrong is not None:
        what = f"hash differs in bytes {wrong.start}…{wrong.start + wrong.nbytes}"
        raise Damaged(what, wrong.key)
    return Written(len(head) + at, len(head), digest(head), hashes)


def blocks(raw: memoryview) -> Iterator[memoryview]:
    """A buffer in blocks of BLOCK_BYTES; the last may be shorter."""
    for start in range(0, len(raw), BLOCK_BYTES):
        yield raw[start : start + BLOCK_BYTES]


def _write_all(fd: int, raw: memoryview) -> None:
    while raw:
        raw = raw[os.write(fd, raw) :]


@dataclass(frozen=True)
class Place:
    """Where a key lies in a file: dtype, shape, first byte and bytes."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class Reader:
    """An open shard. Its header is read and checked at once; no byte of data is, before it is asked for.

    Args:
        size, header_bytes, header_hash: what the manifest says; None leaves out that comparison.
    """

    def __init__(
        self,
        path: Path,
        *,
        size: int | None = None,
        header_bytes: int | None = None,
        header_hash: str | None = None,
    ) -> None:
        self.path = path
        self._fd = open_regular(path)
        try:
            found = os.fstat(self._fd).st_size
            if size is not None and found != size:
                raise Damaged(f"{found} bytes, {size} expected")
            head = self._head(found, header_bytes)
            if header_hash is not None and digest(head) != header_hash:
                raise Damaged("its header is not the one that was written (hash differs)")
            self.keys = _places(head, found)
        except BaseException:
            os.close(self._fd)
            raise

    def _head(self, size: int, header_bytes: int | None) -> bytes:
        first = bytes(self.read(0, min(8, size)))
        if len(first) < 8:
            raise Damaged("shorter than a header")
        (length,) = struct.unpack("<Q", first)
        if length > MOST_HEADER_BYTES or 8 + length > size:
            raise Damaged(f"its header claims {length} bytes")
        if header_bytes is not None and 8 + length != header_bytes:
            raise Damaged(f"its header is {8 + length} bytes, {header_bytes} expected")
        return first + bytes(self.read(8, length))

    def read(self, start: int, nbytes: int) -> np.ndarray:
        """These bytes of the file, or Damaged where it ends before."""
        out = np.empty(nbytes, dtype=np.uint8)
        view, done = out.data, 0
        while done < nbytes:
            got = os.preadv(self._fd, [view[done:]], start + done)
            if got == 0:
                raise Damaged(f"ends at byte {start + done}, {start + nbytes} expected")
            done += got
        return out

    def data(self, key: str, hashes: Sequence[str], low: int = 0, high: int | None = None) -> np.ndarray:
        """Bytes low..high of a key's data, each block that holds one of them read and verified."""
        place = self.keys[key]
        high = place.nbytes if high is None else high
        if len(hashes) != -(-place.nbytes // BLOCK_BYTES):
            raise Damaged("has another number of blocks than its manifest says", key)
        first, last = low // BLOCK_BYTES, -(-high // BLOCK_BYTES)
        start = first * BLOCK_BYTES
        raw = self.read(place.start + start, min(last * BLOCK_BYTES, place.nbytes) - start)
        for number, block in enumerate(blocks(raw.data), first):
            if digest(block) != hashes[number]:
                raise Damaged(
                    f"hash differs in bytes {number * BLOCK_BYTES}…{number * BLOCK_BYTES + len(block)}", key
                )
        return raw[low - start : high - start]

    def check(self, key: str, hashes: Sequence[str]) -> None:
        """Verify every byte of a key, a block at a time."""
        nbytes = self.keys[key].nbytes
        for low in range(0, nbytes, BLOCK_BYTES):
            self.data(key, hashes, low, min(low + BLOCK_BYTES, nbytes))

    def forget_cache(self) -> None:
        """Ask the system to drop its cached pages, so that the next read comes from the disk."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_regular(path: Path) -> int:
    """A descriptor of a regular file that is not a symbolic link; Damaged for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Damaged("is missing") from None
    except OSError as error:
        raise Damaged(f"cannot be opened ({error.strerror}); a symbolic link is never followed") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Damaged("is not a regular file")
    return fd


def _places(head: bytes, size: int) -> dict[str, Place]:
    try:
        header = json.loads(head[8:])
    except (ValueError, RecursionError):
        raise Damaged("its header is not JSON") from None
    if not isinstance(header, dict):
        raise Damaged("its header is not a table")
    places = {key: _place(key, row, len(head)) for key, row in header.items() if key != "__metadata__"}
    at = len(head)
    for key, place in sorted(places.items(), key=lambda row: (row[1].start, row[1].nbytes)):
        if place.start != at:
            raise Damaged("its data overlaps or leaves a hole", key)
        at += place.nbytes
    if at != size:
        raise Damaged(f"its header accounts for {at} of {size} bytes")
    return places


def _place(key: str, row: Any, base: int) -> Place:
    if not isinstance(row, dict) or row.get("dtype") not in ITEM_BYTES:
        raise Damaged("has an unknown dtype", key)
    shape, offsets = row.get("shape"), row.get("data_offsets")
    if not counts(shape) or not counts(offsets) or len(offsets) != 2:
        raise Damaged("has no proper shape or offsets", key)
    nbytes = ITEM_BYTES[row["dtype"]] * math.prod(shape)
    if offsets[1] - offsets[0] != nbytes:
        raise Damaged(f"claims shape {shape} and {offsets[1] - offsets[0]} bytes", key)
    return Place(row["dtype"], tuple(shape), base + offsets[0], nbytes)


def counts(value: object) -> TypeGuard[list[int]]:
    """Is this a list of whole numbers >= 0 (a bool is not one)?"""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)

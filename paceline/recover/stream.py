"""The values of any block of a tensor, read from wherever its slices lie, a bounded part at a time. No torch.

What a reshard, an export and an import write is never in memory whole. They hold PART_BYTES of what is being put
together and as much of what is being read for it (or one row of the first dim, where that is more), whatever the size
of the model.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from paceline.recover.checkpoint import Problem, check_slice, damaged, open_shard
from paceline.recover.container import ITEM_BYTES, Damaged, Reader, Stream
from paceline.recover.manifest import Manifest, Slice
from paceline.recover.rows import BITS, shared_rows
from paceline.recover.slices import Box, overlap

PART_BYTES = 32 << 20
MOST_OPEN = 64
"""Files open at once: a checkpoint may have thousands, and a process is rarely allowed more than 1024."""


class Source(Protocol):
    """Whole tensors by name, in slices."""

    def slices(self, tensor: str) -> Sequence[Slice]:
        """Where the tensor's slices are; together they hold each element once."""
        ...

    def read(self, tensor: str, part: Slice, low: int, high: int) -> np.ndarray:
        """Bytes low..high of a slice's data, checked."""
        ...


class Shards:
    """The tensors of a checkpoint, every block's hash compared when it is read; ``with Shards(...)`` closes its files.

    Reading raises Failed (53), naming file and tensor.
    """

    def __init__(self, step_dir: Path, table: Manifest) -> None:
        self._step_dir, self._table = step_dir, table
        self._open: OrderedDict[str, Reader] = OrderedDict()

    def slices(self, tensor: str) -> Sequence[Slice]:
        """As :class:`Source` says."""
        return self._table.tensors[tensor].slices

    def read(self, tensor: str, part: Slice, low: int, high: int) -> np.ndarray:
        """As :class:`Source` says."""
        try:
            reader = self._reader(part.file)
            check_slice(reader, part, self._table.tensors[tensor].dtype)
            return reader.data(part.key, part.hashes, low, high)
        except Damaged as fault:
            raise damaged(self._step_dir, Problem(part.file, tensor, fault.what)) from fault

    def _reader(self, file: str) -> Reader:
        if file not in self._open:
            while len(self._open) >= MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[file] = open_shard(self._step_dir, self._table, file)
        self._open.move_to_end(file)
        return self._open[file]

    def close(self) -> None:
        """Close every file."""
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stream(source: Source, tensor: str, dtype: str, box: Box) -> Stream:
    """The elements of a block of a tensor, row by row, as :class:`paceline.recover.container.Item` takes them."""

    def blocks_of(block_bytes: int) -> Iterator[memoryview]:
        return _regular(_parts(source, tensor, ITEM_BYTES[dtype], box), block_bytes)

    return blocks_of


def _parts(source: Source, tensor: str, item_bytes: int, box: Box) -> Iterator[np.ndarray]:
    """The block's bytes, some rows of the first dim at a time."""
    rows, beside = (box.shape[0], box.shape[1:]) if box.shape else (1, ())
    at_once = max(1, PART_BYTES // (item_bytes * math.prod(beside)))
    for first in range(0, rows, at_once):
        count = min(at_once, rows - first)
        if box.shape:
            starts, shape = (box.starts[0] + first, *box.starts[1:]), (count, *beside)
        else:
            starts, shape = (), ()
        yield _put_together(source, tensor, item_bytes, Box(starts, (0,) * len(shape), shape))


def _put_together(source: Source, tensor: str, item_bytes: int, box: Box) -> np.ndarray:
    out = np.empty(box.shape, dtype=BITS[item_bytes])
    for part in source.slices(tensor):
        if overlap(part.starts, part.shape, box.starts, box.shape) is None:
            continue

        def read(low: int, high: int, part: Slice = part) -> np.ndarray:
            return source.read(tensor, part, low, high)

        for index, bits in shared_rows(read, part, item_bytes, box, PART_BYTES):
            out[index] = bits
    return out.reshape(-1).view(np.uint8)


def _regular(parts: Iterator[np.ndarray], block_bytes: int) -> Iterator[memoryview]:
    """The same bytes, cut anew into blocks of one size."""
    held = np.empty(0, dtype=np.uint8)
    for part in parts:
        held = np.concatenate((held, part)) if len(held) else part
        whole = len(held) - len(held) % block_bytes
        for start in range(0, whole, block_bytes):
            yield held[start : start + block_bytes].data
        held = held[whole:].copy()
    if len(held):
        yield held.data

"""The memory of a rank filled from that of others: the same blocks, or any that share elements. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.ledger.outcome import Exit, Failed
from paceline.recover.container import ITEM_BYTES
from paceline.recover.live.arena import Arena, Entry
from paceline.recover.slices import Box, overlap

_BITS: Mapping[int, type] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def fill(target: Arena, sources: Sequence[Arena]) -> int:
    """Every block of every tensor of ``target``, copied from the sources; bytes that were copied.

    Raises:
        Failed: an element is in none of them (56).
    """
    copied = 0
    for name, entry in target.table.items():
        into = _array(target, name)
        for box in entry.boxes:
            found = _fill(into, box, name, sources)
            if found != box.numel:
                raise Failed(
                    f"{name} is in no memory that is whole",
                    exit_code=Exit.FAULT,
                    seen=f"{found} of {box.numel} elements from {list(box.starts)} on",
                    rule="a run goes on from memory only where all of its state is there",
                )
            copied += box.numel * into.itemsize
    return copied


def _fill(into: np.ndarray, box: Box, name: str, sources: Sequence[Arena]) -> int:
    taken: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    found = 0
    for source in sources:
        for part in source.table[name].boxes if name in source.table else ():
            shared = overlap(part.starts, part.shape, box.starts, box.shape)
            if shared is None or (part.starts, part.shape) in taken:
                continue
            taken.add((part.starts, part.shape))
            starts, shape = shared
            into[_index(box, starts, shape)] = _array(source, name)[_index(part, starts, shape)]
            found += int(np.prod(shape, dtype=np.int64))
    return found


def _index(box: Box, starts: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    """Where the block of the global tensor lies in the local one that has ``box``."""
    at = [local + start - first for local, start, first in zip(box.local, starts, box.starts, strict=True)]
    return tuple(slice(a, a + n) for a, n in zip(at, shape, strict=True))


def _array(arena: Arena, name: str) -> np.ndarray:
    """A tensor as unsigned integers of its width, in its local shape."""
    entry: Entry = arena.table[name]
    flat: np.ndarray = arena.bytes(name).view(_BITS[ITEM_BYTES[entry.dtype]])
    return flat[: int(np.prod(entry.local, dtype=np.int64))].reshape(entry.local)

"""Reading what a slice of a file and a block of a tensor share, some rows at a time. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from paceline.recover.manifest import Slice
from paceline.recover.slices import Box, overlap

PART_BYTES = 128 << 20
"""Read at once at most, or one row if that is more: what loading takes of memory beside the state itself."""

Read = Callable[[int, int], "np.ndarray[Any, Any]"]
"""(first byte, byte after the last) of a slice's data → these bytes."""

BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""An element's bits as a number, by its bytes: values are moved and never looked at."""


def shared_rows(
    read: Read, part: Slice, item_bytes: int, box: Box, at_once_bytes: int | None = None
) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """(index in the local tensor, the elements as bits) of what a slice and a box share.

    Rows of the first dim lie together in the file, so only the blocks with the rows needed are read; the
    other dims are picked in memory.

    Args:
        at_once_bytes: read at most so much at once, or one row; default PART_BYTES.
    """
    shared = overlap(part.starts, part.shape, box.starts, box.shape)
    if shared is None:
        return
    starts, shape = shared
    row = item_bytes * math.prod(part.shape[1:])
    if not shape:
        yield (), read(0, row).view(BITS[item_bytes]).reshape(())
        return
    at_once = max(1, (at_once_bytes or PART_BYTES) // row)
    beside = tuple(slice(a - p, a - p + n) for a, p, n in zip(starts, part.starts, shape, strict=True))[1:]
    into = tuple(
        slice(at + a - b, at + a - b + n)
        for at, a, b, n in zip(box.local, starts, box.starts, shape, strict=True)
    )
    for first in range(0, shape[0], at_once):
        count = min(at_once, shape[0] - first)
        low = (starts[0] - part.starts[0] + first) * row
        raw = read(low, low + count * row).view(BITS[item_bytes]).reshape((count, *part.shape[1:]))
        place = into[0].start + first
        yield (slice(place, place + count), *into[1:]), raw[(slice(0, count), *beside)]

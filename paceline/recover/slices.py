"""Which part of a tensor a rank holds, and which rank writes it: arithmetic on index ranges, without data.

A *box* is a block of a global tensor that lies in one block of a rank's local tensor. A rank holds one box
of a tensor for every layout of today; strided shards (FSDP2 over tensor parallel) hold several, and the
format carries them too. *Why the chunk rule is spelled out here*: torch's own function gives the first
offset only, which is not enough for a strided shard; the tests hold both to the same answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Run = tuple[int, int]
"""A half-open range of indices: (start, stop)."""

MOST_CELLS = 1 << 24
"""A coverage check above this many cells is refused: a manifest that needs more is not one of ours."""


@dataclass(frozen=True)
class Box:
    """A block of a global tensor: where it starts there, where it starts in the local tensor, its shape."""

    starts: tuple[int, ...]
    local: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements in the block; a scalar has one."""
        return math.prod(self.shape)

    def local_index(self) -> tuple[slice, ...]:
        """The index of this block in the local tensor."""
        return tuple(slice(a, a + n) for a, n in zip(self.local, self.shape, strict=True))


def whole(shape: Sequence[int]) -> list[Box]:
    """The one box of a tensor that is not cut; nothing where it has no element."""
    zero = (0,) * len(shape)
    return [Box(zero, zero, tuple(shape))] if math.prod(shape) else []


def boxes(
    shape: Sequence[int], mesh_shape: Sequence[int], coordinate: Sequence[int], placements: Sequence[Any]
) -> list[Box]:
    """The boxes that the rank at ``coordinate`` of a mesh holds of a tensor of this global ``shape``.

    Args:
        placements: one DTensor placement per mesh axis; a shard is cut further by each later one (left
            to right).
    """
    held: list[list[Run]] = [[(0, n)] for n in shape]
    for axis, placement in enumerate(placements):
        dim = shard_dim(placement)
        if dim is None:
            continue
        parts, index = mesh_shape[axis], coordinate[axis]
        factor = getattr(placement, "split_factor", 1)
        held[dim] = _pick(held[dim], parts, index, int(factor))
    return _product(held)


def moved(held: Sequence[Box], starts: Sequence[int]) -> list[Box]:
    """The boxes of a part as boxes of the whole, in which the part begins at ``starts``."""
    if not any(starts):
        return list(held)
    return [replace(b, starts=tuple(a + s for a, s in zip(b.starts, starts, strict=True))) for b in held]


def shard_dim(placement: Any) -> int | None:
    """The tensor dim that a placement cuts; None where it replicates. A partial sum has no value to keep."""
    if getattr(placement, "is_partial", lambda: False)():
        raise ValueError("a partial sum is not a state: reduce it before it is saved")
    return None if placement.is_replicate() else int(placement.dim)


def _pick(runs: list[Run], parts: int, index: int, factor: int) -> list[Run]:
    """Chunk ``index`` of ``parts``; with a factor, that chunk of each of ``factor`` chunks, one after
    another."""
    size = sum(stop - start for start, stop in runs)
    picked: list[Run] = []
    for block in range(factor):
        low, high = _chunk(size, factor, block)
        a, b = _chunk(high - low, parts, index)
        picked.extend(_between(runs, low + a, low + b))
    return picked


def _chunk(size: int, parts: int, index: int) -> Run:
    """torch's chunk rule: every part is ceil(size / parts) long until nothing is left."""
    step = -(-size // parts)
    return min(step * index, size), min(step * (index + 1), size)


def _between(runs: list[Run], low: int, high: int) -> list[Run]:
    """The elements low..high, counted along the runs, as runs."""
    out: list[Run] = []
    at = 0
    for start, stop in runs:
        a, b = max(low - at, 0), min(high - at, stop - start)
        if a < b:
            out.append((start + a, start + b))
        at += stop - start
    return out


def _product(held: list[list[Run]]) -> list[Box]:
    placed = []
    for runs in held:
        at, rows = 0, []
        for start, stop in runs:
            rows.append((start, at, stop - start))
            at += stop - start
        placed.append([row for row in rows if row[2]])
    return [
        Box(tuple(r[0] for r in rows), tuple(r[1] for r in rows), tuple(r[2] for r in rows))
        for rows in itertools.product(*placed)
    ]


def overlap(
    a_starts: Sequence[int], a_shape: Sequence[int], b_starts: Sequence[int], b_shape: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(starts, shape) of what two blocks of one tensor share; None where they share nothing."""
    starts, shape = [], []
    for a, n, b, m in zip(a_starts, a_shape, b_starts, b_shape, strict=True):
        low, high = max(a, b), min(a + n, b + m)
        if low >= high:
            return None
        starts.append(low)
        shape.append(high - low)
    return tuple(starts), tuple(shape)


def cover_fault(shape: Sequence[int], parts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> str:
    """What is wrong when these blocks (starts, shape) do not hold every element exactly once; empty when
    nothing is.

    Every block's edges cut the tensor into cells; each cell must be counted once.
    """
    rows = [(tuple(starts), tuple(extent)) for starts, extent in parts]
    if any(len(s) != len(shape) or len(e) != len(shape) for s, e in rows):
        return "a slice has another number of dimensions than its tensor"
    if any(a < 0 or n < 0 or a + n > size for s, e in rows for a, n, size in zip(s, e, shape, strict=True)):
        return "a slice lies outside its tensor"
    held, want = sum(math.prod(e) for _, e in rows), math.prod(shape)
    if held != want:
        return f"slices hold {held} of {want} elements"
    if not shape or not want:
        return ""
    edges = [
        sorted({0, size, *(s[d] for s, _ in rows), *(s[d] + e[d] for s, e in rows)})
        for d, size in enumerate(shape)
    ]
    if math.prod(len(row) - 1 for row in edges) > MOST_CELLS:
        return "slices are cut too finely to be checked"
    cells = np.zeros([len(row) - 1 for row in edges], dtype=np.int32)
    at = [{edge: i for i, edge in enumerate(row)} for row in edges]
    for s, e in rows:
        cells[tuple(slice(at[d][s[d]], at[d][s[d] + e[d]]) for d in range(len(shape)))] += 1
    return "" if bool((cells == 1).all()) else "slices overlap and leave a gap"


def share_out(sizes: Sequence[tuple[str, int]], replicas: int) -> dict[str, int]:
    """Which of ``replicas`` equal copies writes each item: the largest first, to whom has least so far.

    A pure function of names and sizes, so that all replicas agree without a message.
    """
    load = [0] * replicas
    owner: dict[str, int] = {}
    for name, size in sorted(sizes, key=lambda row: (-row[1], row[0])):
        best = min(range(replicas), key=lambda r: (load[r], r))
        owner[name] = best
        load[best] += size
    return owner

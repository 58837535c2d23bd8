"""Who holds and who writes what, against torch's own rule."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Partial, _StridedShard

from paceline.recover.slices import Box, boxes, cover_fault, overlap, share_out, whole

shapes = st.lists(st.integers(0, 9), min_size=1, max_size=3)
meshes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def every(mesh: list[int]) -> list[list[int]]:
    grid = torch.cartesian_prod(*[torch.arange(n) for n in mesh]).reshape(-1, len(mesh))
    return grid.tolist()


@given(shape=shapes, mesh=meshes, data=st.data())
def test_plain_shards_are_where_torch_says(shape: list[int], mesh: list[int], data: st.DataObject) -> None:
    dims = st.one_of(st.none(), st.integers(0, len(shape) - 1))
    cuts = data.draw(st.lists(dims, min_size=len(mesh), max_size=len(mesh)))
    placements = [Replicate() if d is None else Shard(d) for d in cuts]
    for coordinate in every(mesh):
        local, offset = _compute_local_shape_and_global_offset(shape, mesh, coordinate, placements)
        held = boxes(shape, mesh, coordinate, placements)
        if math.prod(local) == 0:
            assert held == []
        else:
            assert held == [Box(tuple(offset), (0,) * len(shape), tuple(local))]


@given(rows=st.integers(1, 40), outer=st.integers(1, 4), inner=st.integers(1, 4))
def test_strided_shards_hold_the_rows_that_torch_gives_them(rows: int, outer: int, inner: int) -> None:
    """FSDP2 over tensor parallel: the rank's rows are not together."""
    index = torch.arange(rows)
    placement = _StridedShard(0, split_factor=inner)
    shards, _ = placement._split_tensor(index, outer, with_padding=False)
    seen: list[int] = []
    for rank in range(outer):
        held = boxes([rows], [outer], [rank], [placement])
        mine = torch.full((len(shards[rank]),), -1)
        for box in held:
            mine[box.local_index()] = index[box.starts[0] : box.starts[0] + box.shape[0]]
        assert mine.tolist() == shards[rank].tolist()
        seen += mine.tolist()
    assert sorted(seen) == list(range(rows))


@given(shape=shapes, mesh=meshes, data=st.data())
def test_all_ranks_of_a_mesh_cover_a_tensor_once(
    shape: list[int], mesh: list[int], data: st.DataObject
) -> None:
    placements = [Shard(data.draw(st.integers(0, len(shape) - 1))) for _ in mesh]
    parts = [(b.starts, b.shape) for c in every(mesh) for b in boxes(shape, mesh, c, placements)]
    assert cover_fault(shape, parts) == ""
    if parts:
        assert "of" in cover_fault(shape, parts[1:])
        assert cover_fault(shape, [*parts, parts[0]])


def test_an_overlap_that_keeps_the_count_is_found() -> None:
    assert cover_fault([4], [((0,), (2,)), ((1,), (2,))]) == "slices overlap and leave a gap"
    assert cover_fault([2, 2], [((0, 0), (1, 2)), ((0, 0), (2, 1))]) == "slices overlap and leave a gap"
    assert "outside" in cover_fault([4], [((2,), (4,))])
    assert "dimensions" in cover_fault([4], [((0, 0), (2, 2))])
    assert "finely" in cover_fault([1 << 13, 1 << 13], _diagonal(1 << 13))
    assert cover_fault([], [((), ())]) == ""
    assert cover_fault([], []) == "slices hold 0 of 1 elements"


def _diagonal(side: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """As many elements as a square has, cut at every row and column and not where they should be."""
    rows, rest = divmod(side * side - side, side)
    return [*(((i, i), (1, 1)) for i in range(side)), ((0, 0), (rows, side)), ((0, 0), (1, rest))]


def test_a_partial_sum_is_refused() -> None:
    with pytest.raises(ValueError, match="partial"):
        boxes([4], [2], [0], [Partial()])


def test_a_scalar_is_one_box_and_nothing_is_none() -> None:
    assert whole(()) == [Box((), (), ())]
    assert whole((3, 0)) == []
    assert boxes((), [2], [1], [Replicate()]) == [Box((), (), ())]


def test_overlap() -> None:
    assert overlap((0, 2), (4, 4), (2, 0), (4, 3)) == ((2, 2), (2, 1))
    assert overlap((0,), (2,), (2,), (2,)) is None
    assert overlap((), (), (), ()) == ((), ())


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=60), replicas=st.integers(1, 8))
def test_writing_is_shared_out_evenly_and_the_same_for_any_order(sizes: list[int], replicas: int) -> None:
    items = [(f"t{i}", size) for i, size in enumerate(sizes)]
    owner = share_out(items, replicas)
    assert owner == share_out(items[::-1], replicas)
    load = [sum(s for n, s in items if owner[n] == r) for r in range(replicas)]
    assert max(load) <= sum(sizes) / replicas + max(sizes)

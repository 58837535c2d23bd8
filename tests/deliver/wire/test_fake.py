"""A world with one rank in it: groups, books and answers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from paceline.deliver.mesh import build_mesh
from paceline.deliver.wire.fake import DECISION_NUMBERS, open_fake_world
from paceline.deliver.wire.record import CallRecorder
from paceline.deliver.wire.world import World
from paceline.ledger.spans import CallRow, Ledger
from paceline.plan.layout import Layout

SIZE, RANK = 4, 2


class Rows(Ledger):
    def __init__(self) -> None:
        super().__init__(None)
        self.rows: list[CallRow] = []

    def call(self, row: CallRow, /) -> None:
        self.rows.append(row)


@pytest.fixture
def books() -> Rows:
    return Rows()


@pytest.fixture
def world(books: Rows) -> Iterator[World]:
    world = open_fake_world(RANK, SIZE, CallRecorder(books))
    yield world
    world.close()


def test_peers_answer_what_this_rank_would_have_said(world: World) -> None:
    mine = torch.tensor([1.0, 2.0])
    dist.all_reduce(mine)
    assert mine.tolist() == [4.0, 8.0]
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    assert mine.tolist() == [4.0, 8.0]
    every = torch.zeros(8)
    dist.all_gather_into_tensor(every, torch.tensor([1.0, 2.0]))
    assert every.tolist() == [1.0, 2.0] * 4
    part = torch.zeros(1)
    dist.reduce_scatter_tensor(part, torch.arange(4.0))
    assert part.tolist() == [RANK * 4.0]
    came = torch.zeros(8)
    dist.all_to_all_single(came, torch.arange(8.0))
    assert came.tolist() == [4.0, 5.0] * 4


def test_large_messages_are_counted_and_left_alone(world: World, books: Rows) -> None:
    large = torch.ones(DECISION_NUMBERS + 1)
    work = dist.all_reduce(large, async_op=True)
    assert work is not None
    work.wait()
    assert float(large.max()) == 1.0
    (row,) = books.rows
    assert (row.op, row.bytes, row.seq) == ("all_reduce", 4 * (DECISION_NUMBERS + 1), 0)


def test_each_axis_has_its_own_books(world: World, books: Rows) -> None:
    mesh = build_mesh(Layout.parse("dp=2,tp=2"), RANK, world)
    for name in ("dp", "tp"):
        dist.all_reduce(torch.ones(3), group=mesh.group(name))
    mesh.sum(torch.ones(1))
    assert [(row.axis, row.group, row.bytes) for row in books.rows] == [
        ("dp", "0,2", 12),
        ("tp", "2,3", 12),
        ("step", "0-3#2", 4),
    ]


def test_a_rank_of_16384_is_there_at_once() -> None:
    layout = Layout.parse("dp=16,fsdp=16,tp=8,pp=8")
    assert layout.world_size == 16384
    began = time.perf_counter()
    world = open_fake_world(16383, layout.world_size, CallRecorder(Rows()))
    try:
        mesh = build_mesh(layout, world.rank, world)
        sizes = {name: dist.get_world_size(mesh.group(name)) for name in ("dp", "fsdp", "tp", "pp", "step")}
    finally:
        world.close()
    assert sizes == {"dp": 16, "fsdp": 16, "tp": 8, "pp": 8, "step": 16384}
    assert time.perf_counter() - began < 10


def test_a_process_is_in_one_world_at_a_time(world: World) -> None:
    with pytest.raises(RuntimeError, match="in a world already"):
        open_fake_world(0, 2, CallRecorder(None))

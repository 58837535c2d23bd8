"""The pairs of ``test_pairs.py``, and what a warm rank runs of them: the real rank, whose rows are written down."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from paceline.deliver.wire.world import World
from paceline.launch.place import Place
from paceline.recipes import rank
from paceline.recipes.feed import Feed
from paceline.update.every_step import Counts

DENSE = (
    "single", "dp=2", "dp=3", "dp=4", "fsdp=2", "fsdp=3", "fsdp=4:zero1", "fsdp=2:zero2", "dp=2,fsdp=2",
    "tp=2", "tp=4", "pp=2,mbs=2", "pp=4,mbs=1", "pp=2:zbv,mbs=1", "pp=2:interleaved,mbs=1", "cp=2", "cp=4",
    "tp=2,pp=2,mbs=1", "tp=2,fsdp=2", "cp=2,tp=2", "cp=2,fsdp=2", "pp=2,fsdp=2,mbs=1", "pp=2,cp=2,mbs=1",
    "dp=2,tp=2", "dp=2,pp=2,mbs=1",
)  # fmt: skip
EXPERTS = (
    "single", "dp=2,ep=2", "fsdp=2,ep=2", "fsdp=4,ep=2", "fsdp=4,ep=4", "tp=2,ep=2", "cp=2,ep=2",
    "pp=2,tp=2,ep=2,mbs=1", "pp=2,fsdp=2,ep=2,mbs=1", "tp=2,fsdp=2,ep=4", "dp=4,ep=2", "dp=2,fsdp=2,ep=2", "fsdp=3",
)  # fmt: skip
FAMILIES = {"dense": DENSE, "experts": EXPERTS}


def _ring(family: str, stride: int) -> list[tuple[str, str, str]]:
    """Each layout once as where a run comes from and once as where it goes."""
    names = FAMILIES[family]
    return [(family, name, names[(at + stride) % len(names)]) for at, name in enumerate(names)]


PAIRS = [*_ring("dense", 9), *_ring("experts", 5), *_ring("experts", 8)]
IN_TESTS = (
    ("dense", "fsdp=2", "tp=2,fsdp=2"),
    ("dense", "pp=2:zbv,mbs=1", "cp=2,fsdp=2"),
    ("experts", "single", "fsdp=4,ep=4"),
    ("experts", "fsdp=2,ep=2", "pp=2,tp=2,ep=2,mbs=1"),
)

Row = tuple[int, int, int]
"""Optimizer step, position in the order of the run, row of the packed set."""


class WrittenDown(Feed):
    """The feed of a rank; what it gave to be computed is kept."""

    def __call__(self, step: int) -> tuple[Any, Counts]:
        for batch in self.plan.micro_batches(step - 1):
            pairs = zip(batch.positions_in_order.tolist(), batch.rows.tolist(), strict=True)
            GIVEN.extend((step, position, row) for position, row in pairs if row >= 0)
        return super().__call__(step)


GIVEN: list[Row] = []


def attempt(
    world: World | None, *, payload: dict[str, Any], stop_after: int
) -> tuple[dict[str, Any], list[Row]]:
    """One attempt of a run on this rank, stopped after so many steps (0 = never): its result, and its rows."""
    number, size = (0, 1) if world is None else (world.rank, world.size)
    asked = 0

    def stop() -> str | None:
        nonlocal asked
        asked += 1
        return "stop command" if asked == stop_after else None

    GIVEN.clear()
    place = Place(number, number, size, size, "localhost", "", 0, threads=1, timeout_s=60.0)
    # the pool has made the world, and will close it
    with (
        patch.object(rank, "open_world", lambda *_: world),
        patch.object(World, "close", lambda self: None),
        patch.object(rank, "Feed", WrittenDown),
    ):
        result = rank.run(payload, place, lambda message: None, stop)
    return result, list(GIVEN)

"""What the ranks of the wire's tests run."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist

from paceline.deliver.wire.world import World


def add_up(world: World, start: float = 0.0) -> list[float]:
    x = torch.full((3,), start + world.rank)
    dist.all_reduce(x)
    return x.tolist()


def raise_on(world: World, rank: int) -> float:
    if world.rank == rank:
        raise ValueError("planted")
    return add_up(world)[0]


def die_on(world: World, rank: int) -> float:
    add_up(world)
    if world.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return add_up(world)[0]


def stay_away(world: World, rank: int) -> float:
    add_up(world)
    if world.rank == rank:
        time.sleep(600)
    return add_up(world)[0]


def pid_of(world: World) -> int:
    return os.getpid()


def whatever(world: World, **kwargs: Any) -> Any:
    return kwargs

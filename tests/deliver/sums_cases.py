"""What the ranks of the sums test run: gradients set by hand, then summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paceline.deliver import sums
from paceline.deliver.held import hold
from paceline.deliver.mesh import build_mesh
from paceline.deliver.wire.world import World
from paceline.plan.layout import Layout


@dataclass(frozen=True)
class _Cut:
    axis: str
    dim: int
    units: int
    repeats: bool = False


def partial_sums(world: World, *, bucket_bytes: int) -> dict[str, Any]:
    """Gradients of rank + 1 under dp=2,tp=2, after the sums."""
    layout = Layout.parse("dp=2,tp=2")
    mesh = build_mesh(layout, world.rank, world)
    sums.BUCKET_BYTES = bucket_bytes
    here = mesh.at["pp"]
    held = {
        name: hold((2,), (_Cut("tp", 0, 2),) if name == "cut" else (), layout, world.rank, (here,))
        for name in ("whole", "cut", "some", "unused", "reduced in bf16")
    }
    named = [(name, nn.Parameter(torch.zeros(place.extent))) for name, place in held.items()]
    for name, parameter in named:
        if name == "unused" or (name == "some" and world.rank > 1):
            continue
        parameter.grad = torch.full_like(parameter, world.rank + 1.0)
    wide = [item for item in named if item[0] != "reduced in bf16"]
    narrow = [item for item in named if item[0] == "reduced in bf16"]
    sums.summation(wide, held, mesh, torch.float32)()
    sums.summation(narrow, held, mesh, torch.bfloat16)()
    return {name: None if p.grad is None else p.grad.tolist() for name, p in named}

"""Layout → process groups, one per axis, in the rank order of the layout.

A mesh is a value: which groups this rank belongs to, and its coordinates. With one rank there are no groups
and every reduction is the identity, so ``single`` runs the same code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from paceline.deliver.wire.world import World
from paceline.plan.layout import Layout


@dataclass(frozen=True)
class Mesh:
    """The groups of one rank.

    ``torch_mesh`` has one dim per axis of degree > 1 among (dp, fsdp), in that order; None on one rank.
    ``data_rank`` counts the ranks that see different rows of the global batch. ``everyone`` is a group of all ranks
    for what the step itself agrees on, apart from the axes' groups so that its seconds are booked apart.
    """

    layout: Layout
    rank: int
    torch_mesh: DeviceMesh | None
    data_rank: int
    data_degree: int
    everyone: dist.ProcessGroup | None = None

    @property
    def world_size(self) -> int:
        return self.layout.world_size

    def axis(self, *names: str) -> DeviceMesh:
        """The sub-mesh of these axes; call it only for axes of degree > 1."""
        assert self.torch_mesh is not None, "one rank has no axes"
        return self.torch_mesh[names if len(names) > 1 else names[0]]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks, in place; every rank holds the same bits afterwards."""
        if self.world_size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.SUM, group=self.everyone)
        return values

    def max(self, values: torch.Tensor) -> torch.Tensor:
        """Maximum over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.everyone)
        return values


def build_mesh(layout: Layout, rank: int, world: World | None) -> Mesh:
    """Make the process groups of ``layout`` (every rank calls this, in the same order).

    Args:
        layout: closed, of as many ranks as the world.
        rank: of this process.
        world: what the ranks have joined; None on one rank.
    """
    at = layout.coordinates(rank)
    data_rank = at["dp"] * layout.degree("fsdp") + at["fsdp"]
    degrees = {axis: layout.degree(axis) for axis in ("dp", "fsdp") if layout.degree(axis) > 1}
    if world is None or not degrees:
        return Mesh(layout, rank, None, data_rank, layout.data_degree)
    torch_mesh = world.mesh(degrees)
    everyone = dist.new_group()
    world.name_axis(everyone, "step")
    return Mesh(layout, rank, torch_mesh, data_rank, layout.data_degree, everyone)

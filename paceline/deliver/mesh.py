"""Layout → process groups, in the rank order of the layout.

A mesh is a value: where this rank stands on each axis, and the groups it belongs to. With one rank there are no
groups and every reduction is the identity, so ``single`` runs the same code.

Groups are named by what is booked under them:

    dp tp cp pp     ranks that differ on that axis only
    fsdp            ranks among which parameters are sharded: fsdp · cp, since a context shard holds weights too
    ep etp          ranks that share out the experts, and the cut inside one expert
    edp             ranks that hold the same experts
    stage           all ranks of one pipeline stage: together they see every token of the global batch
    step            all ranks, for what the step itself agrees on
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from paceline.deliver.wire.world import World
from paceline.plan.layout import RANK_AXES, Layout

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Mesh:
    """The groups of one rank.

    Attributes:
        at: this rank's coordinate on each axis.
        data_rank, data_degree: ranks that see different rows of the global batch.
        everyone: all ranks; a group of its own, so that the step's seconds are booked apart from the axes'.
    """

    layout: Layout
    rank: int
    at: dict[str, int]
    data_rank: int
    data_degree: int
    everyone: dist.ProcessGroup | None = None
    _world: World | None = None
    _groups: dict[tuple[str, Ranks], dist.ProcessGroup] = field(default_factory=dict, repr=False)

    @property
    def world_size(self) -> int:
        return self.layout.world_size

    @property
    def speaks(self) -> bool:
        """Whether this rank counts its rows: one of the ranks that see the same ones does."""
        return self.at["tp"] == self.at["cp"] == self.at["pp"] == 0

    def members(self, name: str) -> Ranks:
        """The ranks of the named group that this rank is in, in order."""
        return members(self.layout, self.rank, name)

    def size(self, name: str) -> int:
        """How many ranks the named group has."""
        return len(self.members(name))

    def group(self, name: str) -> dist.ProcessGroup | None:
        """The named process group; None where it would have one rank.

        All its members must ask for it, and in the same order for all groups.
        """
        return self.group_of(self.members(name), name)

    def group_of(self, ranks: Ranks, name: str) -> dist.ProcessGroup | None:
        """A group of exactly these ranks, booked under ``name``; None for one rank."""
        if len(ranks) < 2:
            return None
        if (name, ranks) not in self._groups:
            assert self._world is not None, "one rank has no groups"
            self._groups[name, ranks] = self._world.group(name, ranks)
        return self._groups[name, ranks]

    def torch_mesh(self, *names: str) -> DeviceMesh:
        """A device mesh over named groups, outermost first; each has more than one rank.

        The groups must span a grid: the first one's coordinate varies slowest.
        """
        assert self._world is not None, "one rank has no mesh"
        groups = [group for name in names if (group := self.group(name)) is not None]
        assert len(groups) == len(names), "a mesh has no dim of one rank"
        if len(names) == 1:
            return DeviceMesh.from_group(groups[0], self._world.device_type, mesh_dim_names=names)
        grid = _grid(self.layout, self.rank, names)
        return DeviceMesh.from_group(groups, self._world.device_type, mesh=grid, mesh_dim_names=names)

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
    """Where ``rank`` stands in ``layout``; groups are made when they are first asked for.

    Args:
        layout: closed, of as many ranks as the world.
        rank: of this process.
        world: what the ranks have joined; None on one rank.
    """
    at = layout.coordinates(rank)
    data_rank = at["dp"] * layout.fsdp + at["fsdp"]
    if world is None or layout.world_size == 1:
        return Mesh(layout, rank, at, data_rank, layout.data_degree)
    everyone = world.group("step", tuple(range(layout.world_size)))
    return Mesh(layout, rank, at, data_rank, layout.data_degree, everyone, world)


def members(layout: Layout, rank: int, name: str) -> Ranks:
    """The ranks of the named group that ``rank`` is in: pure arithmetic on the layout."""
    if name == "step":
        return tuple(range(layout.world_size))
    if name == "stage":
        size = layout.world_size // layout.pp
        first = rank // size * size
        return tuple(range(first, first + size))
    if name in ("ep", "etp", "edp"):
        return _expert_members(layout, rank, name)
    return differing(layout, rank, ("fsdp", "cp") if name == "fsdp" else (name,))


def differing(layout: Layout, rank: int, axes: Sequence[str]) -> Ranks:
    """The ranks that differ from ``rank`` on these of the rank axes only, in rank order."""
    ranks = [layout.coordinates(rank)]
    for axis in RANK_AXES:
        if axis in axes:
            ranks = [at | {axis: place} for at in ranks for place in range(layout.degree(axis))]
    return tuple(sorted(layout.rank_of(at) for at in ranks))


def _expert_members(layout: Layout, rank: int, name: str) -> Ranks:
    """Experts take the innermost ranks of a stage: etp first, then ep; what is left holds the same experts."""
    stage = members(layout, rank, "stage")
    inner = rank - stage[0]
    etp, ep = layout.etp, layout.ep
    same: Callable[[int], tuple[int, ...]] = {
        "etp": lambda i: (i // etp,),
        "ep": lambda i: (i % etp, i // (etp * ep)),
        "edp": lambda i: (i % (etp * ep),),
    }[name]
    return tuple(r for r in stage if same(r - stage[0]) == same(inner))


def _grid(layout: Layout, rank: int, names: Sequence[str]) -> list[list[int]]:
    outer, inner = (names[0], names[-1])
    return [list(members(layout, first, inner)) for first in members(layout, rank, outer)]

"""Which part of each whole parameter this rank holds, and which other ranks hold the same.

Three things depend on that and on nothing else: where a shard begins when it is filled or saved, over whom its
gradient is still to be summed, and how often it would be counted in a norm over all ranks. So it is worked out
once, from the layout, and every later phase reads it.

A parameter is cut in two steps. First the axes that change what a sub-layer computes take their slice (tp, ep,
etp); then fsdp shards the slice along dim 0, over ranks that all hold the same one. A parameter that tp does not
cut is held whole by every tp rank, and its gradient there is a partial sum: under tp the residual stream is cut
along the sequence, so what such a parameter touches is a part of the tokens, or feeds only this rank's heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from paceline.deliver.mesh import Ranks, differing, members
from paceline.plan.layout import Layout, balanced

EXPERT_AXES = ("ep", "etp")


class Cut(Protocol):
    """How a parameter may be cut along an axis (``compute/models/cuts.py``): ``dim`` in ``units`` whole units, which
    ``repeats`` allows neighbours to share where there are more ranks."""

    @property
    def axis(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def units(self) -> int: ...
    @property
    def repeats(self) -> bool: ...


Cuts = Callable[[str], Sequence[Cut]]


@dataclass(frozen=True)
class Held:
    """This rank's part of one parameter.

    Attributes:
        shape: of the whole parameter. starts, extent: where the part begins in it and its shape, before fsdp.
        replicas: ranks that hold the same shard of the same part, this one among them: one tensor in many copies,
            to be counted and saved once.
        to_sum: those of them whose gradients are still to be added up when the backward is over.
        holders: ranks that hold any part of it.
        expert: cut by ep or etp, so that it is sharded over the ranks with the same experts.
    """

    shape: tuple[int, ...]
    starts: tuple[int, ...]
    extent: tuple[int, ...]
    replicas: Ranks
    to_sum: Ranks
    holders: Ranks
    expert: bool = False


def held(cut: Cut, degree: int, index: int) -> range:
    """The whole units of rank ``index`` of ``degree``: balanced; fewer units than ranks are repeated.

    Raises:
        ValueError: fewer units than ranks, and they may not be repeated or do not divide them; the rule book refuses
            that earlier.
    """
    units = cut.units
    if units >= degree:
        return balanced(units, degree, index)
    if degree % units or not cut.repeats:
        raise ValueError(f"{units} units cannot be shared out over {degree} ranks")
    unit = index * units // degree
    return range(unit, unit + 1)


def hold(shape: Sequence[int], cuts: Sequence[Cut], layout: Layout, rank: int, stages: Sequence[int]) -> Held:
    """Work out a rank's part of a parameter of global ``shape``.

    Args:
        cuts: along which axes it may be cut; () = whole on every rank of its stage.
        stages: pp coordinates of the ranks that hold it; several for a weight tied over stages.
    """
    at = layout.coordinates(rank)
    starts, extent = [0] * len(shape), list(shape)
    for cut in cuts:
        degree = layout.degree(cut.axis)
        if degree == 1:
            continue
        size = shape[cut.dim] // cut.units
        part = held(cut, degree, at[cut.axis])
        starts[cut.dim], extent[cut.dim] = part.start * size, len(part) * size
    expert = layout.ep * layout.etp > 1 and any(cut.axis in EXPERT_AXES for cut in cuts)
    replicas, to_sum = (_expert if expert else _dense)(cuts, layout, rank, stages)
    holders = tuple(r for n in stages for r in members(layout, layout.rank_of({"pp": n}), "stage"))
    return Held(tuple(shape), tuple(starts), tuple(extent), replicas, to_sum, holders, expert)


def _dense(cuts: Sequence[Cut], layout: Layout, rank: int, stages: Sequence[int]) -> tuple[Ranks, Ranks]:
    at = layout.coordinates(rank)
    tp_cut = next((cut for cut in cuts if cut.axis == "tp"), None)

    def same_part(tp: int) -> bool:
        return tp_cut is None or held(tp_cut, layout.tp, tp) == held(tp_cut, layout.tp, at["tp"])

    data = ("dp",) if layout.fsdp > 1 else ("dp", "fsdp", "cp")  # fsdp shards over fsdp · cp
    found = [r for r in differing(layout, rank, (*data, "tp", "pp")) if _fits(layout, r, same_part, stages)]
    replicas = tuple(found)
    if layout.fsdp > 1:
        # FSDP2 has summed over its shards, and over dp
        return replicas, tuple(r for r in replicas if layout.coordinates(r)["dp"] == at["dp"])
    return replicas, (rank,) if ddp_sums(layout) else replicas


def _fits(layout: Layout, rank: int, same_part: Callable[[int], bool], stages: Sequence[int]) -> bool:
    at = layout.coordinates(rank)
    return at["pp"] in stages and same_part(at["tp"])


def _expert(cuts: Sequence[Cut], layout: Layout, rank: int, stages: Sequence[int]) -> tuple[Ranks, Ranks]:
    same = members(layout, rank, "edp")
    return ((rank,), (rank,)) if layout.fsdp > 1 else (same, same)


def ddp_sums(layout: Layout) -> bool:
    """Whether torch's DDP sums all gradients of this layout: replicas and nothing else."""
    return layout.dp > 1 and layout.world_size == layout.dp and layout.ep == 1


@dataclass(frozen=True)
class Slice:
    """``local`` is the rank's part of a tensor of global ``shape``; it starts at ``starts`` (elements)."""

    local: Tensor
    shape: tuple[int, ...]
    starts: tuple[int, ...]


def slice_of(tensor: Tensor, place: Held) -> Slice:
    """Where the elements that are in this rank's memory lie in the whole parameter; may be empty."""
    if not isinstance(tensor, DTensor):
        return Slice(tensor, place.shape, place.starts)
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    starts = tuple(a + b for a, b in zip(place.starts, offsets, strict=True))
    return Slice(tensor.to_local(), place.shape, starts)

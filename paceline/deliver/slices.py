"""Which part of the whole parameter this rank holds: one function for initialisation, checkpoints and proofs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@dataclass(frozen=True)
class Slice:
    """``local`` is the rank's part of a tensor of global ``shape``; it starts at ``offsets`` (elements)."""

    local: Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]


def slice_of(tensor: Tensor) -> Slice:
    """The rank's slice of a sharded (DTensor) or whole tensor; may be empty for an uneven shard."""
    if not isinstance(tensor, DTensor):
        return Slice(tensor, tuple(tensor.shape), (0,) * tensor.ndim)
    local = tensor.to_local()
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Slice(local, tuple(tensor.shape), tuple(offsets))


def replicas_of(tensor: Tensor, world_size: int) -> int:
    """How many ranks hold this same slice: the world over the ranks among which the tensor is cut."""
    if not isinstance(tensor, DTensor):
        return world_size
    cut = 1
    for dim, placement in enumerate(tensor.placements):
        if placement.is_shard():
            cut *= tensor.device_mesh.size(dim)
    return world_size // cut

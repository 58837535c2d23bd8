"""From a state to the pieces that this rank writes: the slices it owns, as bytes in host memory.

Every slice is held by one or more ranks (its replicas) and written by one of them, which a pure function of
names and sizes picks: all replicas agree without a message and each writes about the same number of bytes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from paceline.recover.buffer import Buffer, offsets
from paceline.recover.container import Item
from paceline.recover.owners import Holding, key_of, owned
from paceline.recover.pieces import Piece, Snapshot
from paceline.recover.slices import Box, boxes, moved, shard_dim, whole
from paceline.recover.state import TrainState, local

DTYPES: dict[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
    torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64:
    "F64", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
TORCH = {name: dtype for dtype, name in DTYPES.items()}


def snapshot(
    state: TrainState, *, rank: int = 0, world_size: int = 1, into: Buffer | None = None
) -> Snapshot:
    """This rank's part of a state: shared with what is in host memory, or copied into a buffer.

    Args:
        into: where all of it is copied, so that training may go on while another process writes it.

    Raises:
        OSError: the buffer cannot be made large enough.
    """
    parts = _parts(state, rank, world_size)
    places = _places(parts)
    if into is not None:
        into.reserve(places[-1])
    pieces = []
    for (name, key, box, part), at in zip(parts, places, strict=False):
        data = host_bytes(part) if into is None else _copied(part, into, at)
        pieces.append(Piece(name, box.starts, Item(key, DTYPES[part.dtype], box.shape, data)))
    table = {name: (state.shape(name), _dtype(name, t)) for name, t in state.tensors.items()}
    return Snapshot(rank, tuple(pieces), table, state.scalars, state.ties, state.groups)


def snapshot_bytes(state: TrainState, *, rank: int = 0, world_size: int = 1) -> int:
    """How large a buffer a snapshot of this state needs."""
    return _places(_parts(state, rank, world_size))[-1]


Part = tuple[str, str, Box, torch.Tensor]
"""The tensor's name, the key of the piece, where it lies in the whole, and its values."""


def _parts(state: TrainState, rank: int, world_size: int) -> list[Part]:
    parts: list[Part] = []
    for name, held in _owned(state, rank, world_size).items():
        mine = local(state.tensors[name])
        for number, box in enumerate(held):
            parts.append((name, key_of(name, number), box, mine[box.local_index()] if box.shape else mine))
    return parts


def _places(parts: list[Part]) -> list[int]:
    return offsets([part.numel() * part.element_size() for _, _, _, part in parts])


def _copied(part: torch.Tensor, into: Buffer, at: int) -> np.ndarray:
    data = into.bytes(at, part.numel() * part.element_size())
    if part.numel():
        torch.from_numpy(data).view(part.dtype).view(part.shape).copy_(part.detach())
    return data


def held_boxes(tensor: torch.Tensor, starts: tuple[int, ...] | None = None) -> list[Box]:
    """The parts of the global tensor that are in this rank's memory; ``starts`` is where its own part begins."""
    if not isinstance(tensor, DTensor):
        found = whole(tensor.shape)
    else:
        mesh = tensor.device_mesh
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            return []
        found = boxes(tensor.shape, mesh.shape, coordinate, tensor.placements)
    return found if starts is None else moved(found, starts)


def boxes_of(state: TrainState, name: str) -> list[Box]:
    """The parts of a state's tensor that are in this rank's memory."""
    place = state.places.get(name)
    return held_boxes(state.tensors[name], None if place is None else place.starts)


def _owned(state: TrainState, rank: int, world_size: int) -> dict[str, tuple[Box, ...]]:
    """name → the boxes that this rank writes."""
    held = {
        name: Holding(
            tuple(boxes_of(state, name)),
            _replicas(state, name, tensor, rank, world_size),
            tensor.element_size(),
        )
        for name, tensor in state.tensors.items()
    }
    return owned(held, rank)


def _replicas(
    state: TrainState, name: str, tensor: torch.Tensor, rank: int, world_size: int
) -> tuple[int, ...]:
    """The ranks that hold the same part of this tensor as this one, in order."""
    if name in state.places:
        return state.places[name].replicas
    if not isinstance(tensor, DTensor):
        return tuple(range(world_size))
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return (rank,)
    index = tuple(
        slice(None) if shard_dim(placement) is None else here
        for placement, here in zip(tensor.placements, coordinate, strict=True)
    )
    return tuple(int(r) for r in mesh.mesh[index].reshape(-1).tolist())


def _dtype(name: str, tensor: torch.Tensor) -> str:
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name}: {tensor.dtype} cannot be kept; {', '.join(map(str, DTYPES))} can")
    return DTYPES[tensor.dtype]


def host_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The values of a tensor as contiguous bytes in host memory; shared with it where that is possible."""
    there = tensor.detach().to("cpu").contiguous()
    return there.reshape(-1).view(torch.uint8).numpy()

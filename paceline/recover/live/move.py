"""A model and its optimizer moved into shared memory, tensor by tensor, or put onto what another process left there.

What is moved is the memory, not the tensor: parameters stay the objects that the optimizer, the wrappers and autograd
know. Of a parameter that FSDP2 shards there are two views of one memory, the padded one that is gathered from and the
shard itself; both are moved, else torch would copy an uneven shard back into private memory without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.deliver.fsdp import Gathered, gathered_from
from paceline.recover.live.arena import Arena, Entry
from paceline.recover.shards import DTYPES, boxes_of
from paceline.recover.state import TrainState, members


def move(
    state: TrainState,
    models: Sequence[nn.Module],
    optimizer: torch.optim.Optimizer,
    arena: Arena,
    *,
    keep: bool,
) -> None:
    """Give every tensor of the state its memory in ``arena``.

    Args:
        state: of these models and this optimizer, for what of each tensor is here.
        keep: whether the values that the tensors have are copied; else those in the arena count, where it has the same
            table, and are undefined where it is laid out anew.

    Raises:
        OSError: the system has not that much shared memory; nothing has moved.
    """
    gathered = gathered_from(models)
    tensors = members(models, optimizer)
    entries = {name: _entry(state, name, tensor, gathered) for name, tensor in tensors.items()}
    if not same(arena.table, entries):
        arena.lay_out(entries)
    with torch.no_grad():
        for name, tensor in tensors.items():
            _put(tensor, arena.bytes(name), gathered.get(id(tensor)), keep)


def same(table: Mapping[str, Entry], entries: Mapping[str, Entry]) -> bool:
    """Whether an arena's table is of these tensors, wherever they lie in it."""
    return list(table) == list(entries) and all(
        table[name].row()[:-1] == entry.row()[:-1] for name, entry in entries.items()
    )


def _entry(state: TrainState, name: str, tensor: Tensor, gathered: Mapping[int, Gathered]) -> Entry:
    mine = _local(tensor)
    padded = gathered[id(tensor)].flat if id(tensor) in gathered else mine
    return Entry(
        DTYPES[mine.dtype],
        state.shape(name),
        tuple(boxes_of(state, name)),
        tuple(mine.shape),
        padded.numel() * padded.element_size(),
    )


def _put(tensor: Tensor, memory: object, gathered: Gathered | None, keep: bool) -> None:
    mine = _local(tensor)
    whole = mine if gathered is None else gathered.flat
    if whole.numel() == 0:
        return
    flat = torch.frombuffer(memory, dtype=mine.dtype)
    if keep:
        flat.copy_(whole.reshape(-1))
    if gathered is not None:
        gathered.flat.data = flat
    mine.data = flat[: mine.numel()].view(mine.shape)


def _local(tensor: Tensor) -> Tensor:
    """The very tensor that has this rank's part; not a view of it, whose memory could not be changed."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor

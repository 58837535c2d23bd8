"""Loading: any layout's checkpoint into any layout's state, each rank reading the blocks that hold its own
elements.

Strict in both directions: a tensor that one side has and the other has not, another shape or another dtype,
is refused with all names. Nothing keeps its initial value in silence.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from paceline.ledger.outcome import Exit, Refused
from paceline.recover.agree import Ranks
from paceline.recover.checkpoint import Problem, check_slice, damaged, latest, open_manifest, open_shard
from paceline.recover.container import ITEM_BYTES, Damaged, Reader
from paceline.recover.manifest import Manifest, Slice
from paceline.recover.rows import shared_rows
from paceline.recover.shards import DTYPES, TORCH, boxes_of
from paceline.recover.slices import Box, overlap
from paceline.recover.state import TrainState, local

__all__ = ["Loaded", "fill", "latest", "match", "read"]


@dataclass(frozen=True)
class Loaded:
    """What was read: the checkpoint's table of contents, and the bytes that this rank needed."""

    manifest: Manifest
    nbytes: int


def read(
    step_dir: Path,
    state: TrainState,
    *,
    world: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
    only: str = "",
) -> Loaded:
    """Fill ``state`` in place: its tensors as this rank holds them, its scalars and optimizer options.

    Args:
        state: from :func:`collect` on the model and optimizer of the new layout.
        world: the ranks that load together, so that all fail when one does.
        only: a prefix (``model/``): the rest of the state and of the checkpoint is left alone, scalars too.

    Raises:
        Refused: names, shapes or dtypes differ (54). Failed: a byte is not what was written (53).
    """
    ranks = Ranks(world, device)
    loaded = ranks.together(lambda: _read(step_dir, state, only))
    assert loaded is not None
    return loaded


def _read(step_dir: Path, state: TrainState, only: str) -> Loaded:
    table = open_manifest(step_dir)
    match(step_dir, table, state, only)
    work: dict[str, list[tuple[str, Slice, torch.Tensor, Box]]] = defaultdict(list)
    for name, tensor in state.tensors.items():
        if not name.startswith(only):
            continue
        for box in boxes_of(state, name):
            for part in table.tensors[name].slices:
                if overlap(part.starts, part.shape, box.starts, box.shape):
                    work[part.file].append((name, part, local(tensor), box))
    nbytes = 0
    for file in sorted(work):
        name = f"(holds {work[file][0][0]} …)"
        try:
            with open_shard(step_dir, table, file) as reader:
                for name, part, target, box in work[file]:
                    check_slice(reader, part, table.tensors[name].dtype)
                    nbytes += fill(reader, part, table.tensors[name].dtype, target, box)
        except Damaged as fault:
            raise damaged(step_dir, Problem(file, name, fault.what)) from fault
    if not only:
        state.scalars, state.groups = dict(table.scalars), list(table.groups)
    return Loaded(table, nbytes)


def fill(reader: Reader, part: Slice, dtype: str, target: torch.Tensor, box: Box) -> int:
    """Copy what a slice and a box share into the box's place in the local tensor; return the bytes asked for."""
    asked = 0

    def read(low: int, high: int) -> np.ndarray:
        nonlocal asked
        asked += high - low
        return reader.data(part.key, part.hashes, low, high)

    for index, bits in shared_rows(read, part, ITEM_BYTES[dtype], box):
        with torch.no_grad():
            target[index].copy_(torch.from_numpy(bits).view(TORCH[dtype]))
    return asked


def match(step_dir: Path, table: Manifest, state: TrainState, only: str = "") -> None:
    """Refuse unless the checkpoint and the state have the same tensors, ties, shapes and dtypes."""
    have = {n: t for n, t in table.tensors.items() if n.startswith(only)}
    want = {n: t for n, t in state.tensors.items() if n.startswith(only)}
    told = [
        *(f"missing from the checkpoint: {n}" for n in sorted(want.keys() - have.keys())),
        *(f"unexpected in the checkpoint: {n}" for n in sorted(have.keys() - want.keys() - state.everywhere)),
    ]
    for name in sorted(want.keys() & have.keys()):
        saved, mine = have[name], want[name]
        if saved.shape != state.shape(name):
            told.append(f"{name}: shape {list(saved.shape)} saved, {list(state.shape(name))} in the model")
        if saved.dtype != DTYPES.get(mine.dtype):
            told.append(f"{name}: {saved.dtype} saved, {DTYPES.get(mine.dtype, mine.dtype)} in the model")
    for alias in sorted(set(table.ties.items()) ^ set(state.ties.items())):
        if alias[0].startswith(only):
            side = "the checkpoint" if alias in table.ties.items() else "the model"
            told.append(f"tied in {side} only: {alias[0]} = {alias[1]}")
    if told:
        raise Refused(
            "the checkpoint is not of this model and optimizer",
            exit_code=Exit.MISMATCH,
            seen="\n".join(_shorten(told)),
            rule="every tensor is in both, with the same shape and dtype",
            use="the job this checkpoint was made with (model.*, optimizer.name, train.precision)",
            where=str(step_dir),
        )


def _shorten(told: list[str], most: int = 40) -> list[str]:
    """One screen; the rest is counted, and ``checkpoint inspect`` has all names."""
    return told if len(told) <= most else [*told[:most], f"… and {len(told) - most} more"]

"""A checkpoint as plain whole tensors, whatever layout wrote it: for ``sample``, ``pl.load`` and export."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline.recover.checkpoint import open_manifest
from paceline.recover.load import read
from paceline.recover.shards import TORCH
from paceline.recover.state import TrainState


def read_whole(step_dir: Path, prefix: str = "model/") -> dict[str, torch.Tensor]:
    """Every tensor under ``prefix`` by its name without it, in host memory; tied names share one tensor.

    Memory is bounded by the files on disk: the manifest's shapes are believed only as far as their slices
    reach.

    Raises:
        Failed: a byte is not what was written (53).
    """
    table = open_manifest(step_dir)
    state = TrainState(ties={a: n for a, n in table.ties.items() if a.startswith(prefix)})
    for name, tensor in table.tensors.items():
        if name.startswith(prefix):
            state.tensors[name] = torch.empty(tensor.shape, dtype=TORCH[tensor.dtype])
    read(step_dir, state, only=prefix)
    found = {name.removeprefix(prefix): tensor for name, tensor in state.tensors.items()}
    for alias, name in state.ties.items():
        if name in state.tensors:
            found[alias.removeprefix(prefix)] = state.tensors[name]
    return found

"""Saving while nothing else happens: the state is written from where it is, and training waits.

A run saves in the background (:mod:`paceline.recover.background`); this is for a host without the memory for a
second copy of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from paceline.recover import steps
from paceline.recover.agree import Ranks
from paceline.recover.shards import snapshot
from paceline.recover.state import TrainState
from paceline.recover.write import Saved, write


def save(
    folder: Path,
    state: TrainState,
    *,
    layout: str,
    identity: Mapping[str, str],
    world: dist.ProcessGroup | None = None,
    keep: int = 2,
    keep_every: int | None = None,
    attempt: int = 0,
    device: torch.device | str = "cpu",
) -> Saved:
    """Save a state under ``folder/step-NNNNNNNN`` by its scalar ``step``. Called by every rank of ``world``.

    Returns when it is written, verified and named. Arguments are those of :func:`paceline.recover.write.write`.

    Args:
        device: where ``world`` takes tensors (the CPU for gloo).

    Raises:
        Failed: the same on all ranks: the store is full, read-only or gone (55), or ranks disagree (32).
        Refused: the step there is another run's (54).
    """
    ranks = Ranks(world, device)
    taken = ranks.together(lambda: snapshot(state, rank=ranks.rank, world_size=ranks.size))
    assert taken is not None
    saved = write(
        folder,
        taken,
        ranks,
        layout=layout,
        identity=identity,
        keep=keep,
        keep_every=keep_every,
        attempt=attempt,
    )
    ranks.together(lambda: steps.sweep(folder), on=0)
    return saved

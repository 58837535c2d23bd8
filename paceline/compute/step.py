"""Forward of one micro-batch: the part of a step that knows nothing of ranks, accumulation or optimizers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def micro_batch_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Sum of the loss over the micro-batch's valid targets, nats, scalar.

    Args:
        model: (tokens [B, T], positions, segments, targets) → scalar, as ``models/decoder.py``.
        batch: ``tokens``, ``targets`` [B, T] int64 and, for documents kept apart, ``positions``, ``segments``.
    """
    loss: Tensor = model(batch["tokens"], batch.get("positions"), batch.get("segments"), batch["targets"])
    return loss

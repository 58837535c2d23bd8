"""Forward of one micro-batch: the part of a step that knows nothing of ranks, accumulation or optimizers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from paceline.compute.loss import token_loss_sum
from paceline.compute.seams import TokenLoss


def micro_batch_loss(
    model: nn.Module, batch: Mapping[str, Tensor], loss: TokenLoss = token_loss_sum
) -> Tensor:
    """Sum of the loss over the micro-batch's valid targets, nats, scalar.

    Args:
        model: tokens [B, T] (positions, segments optional) → logits [B, T, V].
        batch: ``tokens``, ``targets`` [B, T] int64 and, for documents kept apart, ``positions``, ``segments``.
        loss: the loss seam.
    """
    logits_BTV = model(batch["tokens"], batch.get("positions"), batch.get("segments"))
    return loss(logits_BTV, batch["targets"])

"""Held-out loss of a delivered model: every row exactly once over all ranks, padding of weight zero."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from paceline.deliver.delivery import Delivery
from paceline.deliver.device import Device
from paceline.deliver.mesh import Mesh
from paceline.update.passes import Passes
from paceline.update.telemetry import bits_per_byte


@torch.no_grad()
def held_out_loss(
    delivery: Delivery,
    passes: Passes,
    batches: Iterable[tuple[Mapping[str, Tensor], int]],
    mesh: Mesh,
    device: Device,
) -> dict[str, float]:
    """Loss over all ranks' batches.

    Args:
        delivery: the model, settled at the end. passes: its forward.
        batches: this rank's (micro-batch, bytes of text in its valid targets); as many, of one shape, on every rank.
        mesh: sums over its ranks.
        device: of the model.

    Returns:
        ``loss`` (nats per valid token), ``perplexity``, ``bits_per_byte`` (where the text has bytes), ``tokens``.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=device.torch)
    for batch, text_bytes in batches:
        nats_here = passes.forward_only(batch)
        if mesh.at["tp"] == 0:  # all tp ranks have the same loss and the same targets
            sums[0] += nats_here
        if mesh.at["tp"] == mesh.at["pp"] == 0:  # and so have all stages
            sums[1] += (batch["targets"] >= 0).sum()
        if mesh.speaks:
            sums[2] += text_bytes
    delivery.settle()
    nats, tokens, text_bytes = mesh.sum(sums).tolist()
    loss = nats / max(tokens, 1.0)
    result = {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "tokens": tokens}
    if text_bytes > 0:
        result["bits_per_byte"] = bits_per_byte(nats, text_bytes)
    return result

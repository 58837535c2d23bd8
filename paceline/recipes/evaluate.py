"""Held-out loss of a delivered model: every row exactly once over all ranks, padding of weight zero."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch

from paceline.compute.step import micro_batch_loss
from paceline.deliver.delivery import Delivery
from paceline.deliver.device import Device
from paceline.deliver.mesh import Mesh
from paceline.recipes.feed import to_device
from paceline.update.telemetry import bits_per_byte


@torch.no_grad()
def held_out_loss(
    delivery: Delivery,
    batches: Iterable[tuple[Mapping[str, np.ndarray], int]],
    mesh: Mesh,
    device: Device,
) -> dict[str, float]:
    """Loss over all ranks' batches.

    Args:
        delivery: the model; its bare module is called, since no gradient will be delivered.
        batches: this rank's (arrays, bytes of text in the valid targets); as many, of one shape, on every rank.
        mesh: sums over its ranks.
        device: of the model.

    Returns:
        ``loss`` (nats per valid token), ``perplexity``, ``bits_per_byte`` (where the text has bytes), ``tokens``.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=device.torch)
    for arrays, text_bytes in batches:
        batch = to_device(arrays, device)
        sums[0] += micro_batch_loss(delivery.model, batch)
        sums[1] += (batch["targets"] >= 0).sum()
        sums[2] += text_bytes
    delivery.settle()
    nats, tokens, text_bytes = mesh.sum(sums).tolist()
    loss = nats / max(tokens, 1.0)
    result = {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "tokens": tokens}
    if text_bytes > 0:
        result["bits_per_byte"] = bits_per_byte(nats, text_bytes)
    return result


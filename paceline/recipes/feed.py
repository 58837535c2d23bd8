"""Host batches → tensors on the device, with the counts that the step's first reduction carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.compute.data.batches import BatchPlan
from paceline.deliver.device import Device
from paceline.update.every_step import Counts

MicroBatch = dict[str, Tensor]


def to_device(arrays: Mapping[str, np.ndarray], device: Device) -> MicroBatch:
    """One micro-batch: int64 tokens and targets [B, T], and segments, positions where documents are kept apart."""
    return {name: device.from_host(torch.from_numpy(np.ascontiguousarray(a))) for name, a in arrays.items()}


class Feed:
    """This rank's share of every global batch; a pure function of the step."""

    def __init__(self, plan: BatchPlan, device: Device) -> None:
        self._plan, self._device = plan, device

    def __call__(self, step: int) -> tuple[Sequence[MicroBatch], Counts]:
        """Micro-batches and counts of optimizer step ``step``, from 1."""
        share = self._plan.step(step)
        batches = [to_device(arrays, self._device) for arrays in share.micro_batches]
        return batches, Counts(share.valid_tokens, share.target_bytes, share.rows)

"""Changes that are no faults: another order, another moment, another kernel."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from paceline.plan.layout import Layout
from tests.prove.planted.planting import Patches, instead, planted


@planted
def small_messages(layout: Layout, rank: int) -> Patches:
    """Each gradient travels alone: other messages, and another order of additions."""
    yield patch("paceline.deliver.sums.BUCKET_BYTES", 1)


@planted
def shards_reduced_once(layout: Layout, rank: int) -> Patches:
    """Gradients of shards in a pipeline are kept whole over the step and reduced at its end: memory for messages."""

    def before(_: Any, self: Any, last: bool) -> None:
        self._switch(last, drop=last, everywhere=last)

    yield instead("update.pipeline.shards:Shards.before_backward", before)


@planted
def counts_twice_of_all(layout: Layout, rank: int) -> Patches:
    """Every expert's load is counted as often as there are ranks: what is used of it is a share."""

    def summed(original: Any, self: Any, counts: Tensor) -> Tensor:
        return original(self, counts).mul_(layout.world_size)

    yield instead("update.every_step:EveryStep._sum_over_stage", summed)


@planted
def attention_by_hand(layout: Layout, rank: int) -> Patches:
    """Context ranks attend by a plain softmax over all keys, in place of torch's kernel over those before."""

    def attend(_: Any, q: Tensor, chunk: range, rows: Tensor, k: Tensor, v: Tensor, look: Any) -> Tensor:
        times = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
        mask = look.allowed(rows, k.shape[2])
        return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v

    yield instead("deliver.cp_attention:chunk_attention", attend)

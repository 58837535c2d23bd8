"""Faults of tensor parallelism: sums over tp, repeated heads, the vocabulary's borders, experts' load."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.plan.layout import Layout
from tests.prove.planted.planting import Patches, instead, planted, without_sum


@planted
def norms_left_partial(layout: Layout, rank: int) -> Patches:
    """A norm under sequence parallelism sees a part of the tokens, and nobody sums its gradient over tp: Megatron's
    norms need a flag of their own for it, and a new norm did not get it."""
    return without_sum(lambda name: "layernorm" in name)


@planted
def repeated_heads_left_partial(layout: Layout, rank: int) -> Patches:
    """More tp ranks than key/value heads: the heads are repeated, each copy learns from its own queries, and the
    copies drift apart. With as many heads as ranks nothing is wrong."""
    return without_sum(lambda name: "k_proj" in name or "v_proj" in name)


@planted
def target_at_border_counted_twice(layout: Layout, rank: int) -> Patches:
    """``<=`` for ``<``: the first row of the next rank's vocabulary counts as this rank's last one too."""

    def held(_: Any, targets_N: Tensor, rows: range) -> tuple[Tensor, Tensor]:
        local_N = targets_N - rows.start
        here = (local_N >= 0) & (local_N <= len(rows))
        return here, (local_N * here).clamp(max=len(rows) - 1)[:, None]

    yield instead("compute.loss:_held", held)


@planted
def lookup_gradient_leaks(layout: Layout, rank: int) -> Patches:
    """The lookup of a token that is elsewhere gives zeros, but the backward forgets the mask: strange rows learn."""

    def lookup(original: Any, self: Any, tokens: Tensor, weight: Tensor, vocab_size: int) -> Tensor:
        rows = self.rows(vocab_size)
        unmasked = torch.nn.functional.embedding((tokens - rows.start) % len(rows), weight)
        return unmasked + (original(self, tokens, weight, vocab_size) - unmasked).detach()

    yield instead("deliver.tp:CutVocabulary.lookup", lookup)


@planted
def counts_of_first_tp_rank(layout: Layout, rank: int) -> Patches:
    """Only the first tp rank reports its experts' load, as if all had the same tokens. The first step's balance is
    even and right; the second step's is that of half of the tokens."""

    def summed(original: Any, self: Any, counts: Tensor) -> Tensor:
        return original(self, counts.mul_(0) if self.mesh.at["tp"] else counts)

    yield instead("update.every_step:EveryStep._sum_over_stage", summed)


@planted
def last_row_of_a_shard_lost(layout: Layout, rank: int) -> Patches:
    """``>=`` for ``>``: the last row of each rank's vocabulary is nobody's, and its token has no embedding."""

    def lookup(original: Any, self: Any, tokens: Tensor, weight: Tensor, vocab_size: int) -> Tensor:
        found = original(self, tokens, weight, vocab_size)
        return found.masked_fill((tokens == self.rows(vocab_size).stop - 1)[..., None], 0)

    yield instead("deliver.tp:CutVocabulary.lookup", lookup)

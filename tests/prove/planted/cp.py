"""Faults of context parallelism: positions, the order of keys and documents, repeated heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.plan.layout import Layout
from tests.prove.planted.planting import Patches, instead, planted


@planted
def positions_are_local(layout: Layout, rank: int) -> Patches:
    """Rotary positions count from the start of what this rank has, not of the row."""

    def take(original: Any, batch: Mapping[str, Tensor], degree: int, index: int) -> dict[str, Tensor]:
        taken = original(batch, degree, index)
        here = torch.arange(taken["tokens"].shape[1]).expand(taken["tokens"].shape)
        return {**taken, "positions": here}

    yield instead("deliver.cp:take", take)


@planted
def late_keys_not_turned(layout: Layout, rank: int) -> Patches:
    """Gathered keys are put back in the order of the row, but the late chunks, which were dealt backwards, are not
    turned round."""

    def natural(_: Any, dealt: Tensor, degree: int, dim: int) -> Tensor:
        early, late = dealt.unflatten(dim, (degree, 2, -1)).unbind(dim + 1)
        return torch.cat((early, late), dim).flatten(dim, dim + 1)

    yield instead("deliver.cp_attention:natural", natural)


@planted
def segments_stay_dealt(layout: Layout, rank: int) -> Patches:
    """The documents of a packed row are gathered from the ranks like its keys, and are left in the order of the ranks:
    a mask of the wrong tokens, and only in a row with several documents."""
    from paceline.deliver.zigzag import dealt

    def take(original: Any, batch: Mapping[str, Tensor], degree: int, index: int) -> dict[str, Tensor]:
        taken = original(batch, degree, index)
        return {k: dealt(v, degree, 1) if k == "segments" else v for k, v in taken.items()}

    yield instead("deliver.cp:take", take)


@planted
def heads_repeated_in_turn(layout: Layout, rank: int) -> Patches:
    """``repeat`` for ``repeat_interleave``: with more ulysses ranks than key/value heads, queries meet the keys of
    another group. With as many heads as ranks nothing is repeated."""

    def attend(original: Any, self: Any, q: Tensor, k: Tensor, v: Tensor, look: Any) -> Tensor:
        times = math.lcm(k.shape[1], self.group.size()) // k.shape[1]
        return original(self, q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), look)

    yield instead("deliver.cp_attention:Ulysses.__call__", attend)


@planted
def evaluation_forgets_positions(layout: Layout, rank: int) -> Patches:
    """Training passes positions, the evaluation loop does not: on one device the default is right, on a part of the
    row it is not. Only the held-out loss is wrong."""

    def forward_only(original: Any, self: Any, batch: Mapping[str, Tensor]) -> Tensor:
        keep = layout.cp == 1
        return original(self, {k: v for k, v in batch.items() if keep or k != "positions"})

    yield instead("update.passes:InTurn.forward_only", forward_only)


@planted
def border_at_an_edge_unseen(layout: Layout, rank: int) -> Patches:
    """Documents are told apart inside each chunk, so one that begins where a chunk does goes on from the last one."""

    def take(original: Any, batch: Mapping[str, Tensor], degree: int, index: int) -> dict[str, Tensor]:
        taken = original(batch, degree, index)
        segments = batch["segments"]
        begins = segments.diff(dim=1, prepend=segments[:, :1])
        begins[:, :: segments.shape[1] // (2 * degree)] = 0
        return {**taken, "segments": begins.cumsum(1).to(segments.dtype)}

    yield instead("deliver.cp:take", take)

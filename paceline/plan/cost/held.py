"""What one rank of a pipeline's coordinate holds of the model: its layers by kind, and their parts under tp and ep.

Every axis' cost file asks here for sizes, so that a cut is counted in one place. Of ranks that hold different
amounts, the fullest counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from paceline.plan.columns import Column
from paceline.plan.cost.sheaf import Priced
from paceline.plan.layout import Layout
from paceline.plan.model import (
    LayerParameters,
    Widths,
    cut,
    held_further,
    held_layer,
    held_outer,
    kinds,
    predicted,
)
from paceline.plan.stages import stage_layers


@dataclass(frozen=True)
class Layers:
    """Layers of one kind on a rank: the kind as the rank computes it, its parameters, how many."""

    kind: Widths
    parameters: LayerParameters
    count: int


@dataclass(frozen=True)
class Held:
    """The part of the model at one ``pp`` coordinate, on its fullest rank, before fsdp shards it.

    Attributes:
        widths: of the whole model. layers: by kind. outer: parameters outside the layers; ``tables`` of them are
            rows of the vocabulary.
    """

    widths: Widths
    layers: tuple[Layers, ...]
    embeds: bool
    predicts: bool
    tables: int
    outer: int
    apart: bool

    @property
    def depth(self) -> int:
        return sum(part.count for part in self.layers)

    @property
    def experts(self) -> int:
        """Parameters that are sharded over the ranks with the same experts; 0 without ep."""
        return sum(part.parameters.experts * part.count for part in self.layers) if self.apart else 0

    @property
    def dense(self) -> int:
        """All other parameters."""
        return self.outer + sum(self.unit(part) * part.count for part in self.layers)

    @property
    def total(self) -> int:
        return self.dense + self.experts

    def unit(self, part: Layers) -> int:
        """Of one layer, what is gathered together by fsdp."""
        return part.parameters.dense if self.apart else part.parameters.total


@dataclass(frozen=True)
class Share:
    """What a ``pp`` coordinate has of the model, whatever cuts its layers: how many of each kind, and which ends."""

    counts: tuple[int, ...]
    embeds: bool
    predicts: bool


Alike = tuple[tuple[Held, int, int], ...]


def held_by(layout: Priced, widths: Widths, sequence_length: int) -> tuple[Held, ...]:
    """What each ``pp`` coordinate holds, in their order; one without a pipeline."""
    return tuple(
        _held(widths, share, layout.tp, layout.ep, layout.etp)
        for share in shares(widths, sequence_length, layout.pp, layout.vpp, layout.schedule)
    )


def places(layout: Priced, widths: Widths, sequence_length: int) -> Alike:
    """(what is held, by how many coordinates, the first of them): coordinates that hold the same are alike."""
    pipeline = (layout.pp, layout.vpp, layout.schedule)
    return _places(
        widths, sequence_length if layout.pp > 1 else 1, pipeline, layout.tp, layout.ep, layout.etp
    )


@lru_cache(maxsize=8192)
def _places(widths: Widths, length: int, pipeline: tuple[int, int, str], tp: int, ep: int, etp: int) -> Alike:
    return tuple(
        (_held(widths, share, tp, ep, etp), count, first)
        for share, count, first in alike(shares(widths, length, *pipeline))
    )


@lru_cache(maxsize=4096)
def alike(each: tuple[Share, ...]) -> tuple[tuple[Share, int, int], ...]:
    """(share, of how many coordinates, the first of them)."""
    found: dict[Share, list[int]] = {}
    for place, share in enumerate(each):
        found.setdefault(share, []).append(place)
    return tuple((share, len(which), which[0]) for share, which in found.items())


@lru_cache(maxsize=4096)
def shares(widths: Widths, length: int, pp: int, vpp: int, schedule: str) -> tuple[Share, ...]:
    """Of each coordinate."""
    layout = Layout(pp=pp, vpp=vpp, schedule=schedule)
    stages = stage_layers(layout, widths, length)
    numbers = [frozenset(which) for _, which in kinds(widths)]
    counts = [[0] * len(numbers) for _ in range(pp)]
    for stage, layers in enumerate(stages):
        mine = counts[layout.stage_rank(stage)]
        for layer in layers:
            mine[next(i for i, which in enumerate(numbers) if layer in which)] += 1
    first, last = layout.stage_rank(0), layout.stage_rank(layout.stages - 1)
    return tuple(Share(tuple(mine), place == first, place == last) for place, mine in enumerate(counts))


@lru_cache(maxsize=8192)
def _held(widths: Widths, share: Share, tp: int, ep: int, etp: int) -> Held:
    layers = tuple(
        Layers(cut(kind, tp, ep, etp), held_layer(kind, tp, ep, etp), count)
        for (kind, _), count in zip(kinds(widths), share.counts, strict=True)
        if count
    )
    further = predicted(widths) if share.predicts else 0
    if further:
        last = cut(kinds(widths)[-1][0], tp, ep, etp)
        layers += (Layers(last, held_further(widths, tp, ep, etp), further),)
    tables, rest = held_outer(widths, tp, embeds=share.embeds, predicts=share.predicts)
    return Held(widths, layers, share.embeds, share.predicts, tables, tables + rest, ep * etp > 1)


def dense_shards(layout: Priced) -> Column:
    """Ranks over which fsdp cuts what is not an expert's: context shards hold weights too."""
    return layout.fsdp * layout.cp if layout.sharded else 1


def same_experts(layout: Priced) -> Column:
    """Ranks of a stage that hold the same experts."""
    return layout.dp * layout.fsdp * layout.cp * layout.tp // (layout.ep * layout.etp)


def expert_shards(layout: Priced) -> Column:
    """Ranks over which fsdp cuts the experts' state."""
    return same_experts(layout) if layout.sharded else 1


def rank_states(layout: Priced, held: Held) -> Column:
    """Parameters whose master value, gradient and optimizer state one rank keeps."""
    return held.dense / dense_shards(layout) + held.experts / expert_shards(layout)

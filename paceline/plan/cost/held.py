"""What one rank of a pipeline's coordinate holds of the model: its layers by kind, and their parts under tp and ep.

Every axis' cost file asks here for sizes, so that a cut is counted in one place. Of ranks that hold different
amounts, the fullest counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from paceline.plan.layout import Layout
from paceline.plan.model import LayerParameters, Widths, cut, held_layer, held_outer, kinds
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


def held_by(layout: Layout, widths: Widths, sequence_length: int) -> tuple[Held, ...]:
    """What each ``pp`` coordinate holds, in their order; one without a pipeline."""
    cut = (layout.pp, layout.vpp, layout.schedule, layout.tp, layout.ep, layout.etp)
    return _held(widths, sequence_length if layout.pp > 1 else 1, *cut)


@lru_cache(maxsize=4096)
def alike(places: tuple[Held, ...]) -> tuple[tuple[Held, int, int], ...]:
    """(what is held, by how many coordinates, the first of them): coordinates that hold the same are alike."""
    found: dict[Held, list[int]] = {}
    for place, held in enumerate(places):
        found.setdefault(held, []).append(place)
    return tuple((held, len(which), which[0]) for held, which in found.items())


@lru_cache(maxsize=4096)
def _held(
    widths: Widths, length: int, pp: int, vpp: int, schedule: str, tp: int, ep: int, etp: int
) -> tuple[Held, ...]:
    layout = Layout(pp=pp, vpp=vpp, schedule=schedule, tp=tp, ep=ep, etp=etp)
    stages = stage_layers(layout, widths, length)
    found = []
    for place in range(pp):
        mine = [stage for stage in range(layout.stages) if layout.stage_rank(stage) == place]
        numbers = {layer for stage in mine for layer in stages[stage]}
        layers = tuple(
            Layers(cut(kind, tp, ep, etp), held_layer(kind, tp, ep, etp), len(numbers & set(which)))
            for kind, which in kinds(widths)
            if numbers & set(which)
        )
        embeds, predicts = 0 in mine, layout.stages - 1 in mine
        tables, rest = held_outer(widths, tp, embeds=embeds, predicts=predicts)
        found.append(Held(widths, layers, embeds, predicts, tables, tables + rest, ep * etp > 1))
    return tuple(found)


def dense_shards(layout: Layout) -> int:
    """Ranks over which fsdp cuts what is not an expert's: context shards hold weights too."""
    return layout.fsdp * layout.cp if layout.fsdp > 1 else 1


def same_experts(layout: Layout) -> int:
    """Ranks of a stage that hold the same experts."""
    return layout.dp * layout.fsdp * layout.cp * layout.tp // (layout.ep * layout.etp)


def expert_shards(layout: Layout) -> int:
    """Ranks over which fsdp cuts the experts' state."""
    return same_experts(layout) if layout.fsdp > 1 else 1


def rank_states(layout: Layout, held: Held) -> float:
    """Parameters whose master value, gradient and optimizer state one rank keeps."""
    return held.dense / dense_shards(layout) + held.experts / expert_shards(layout)

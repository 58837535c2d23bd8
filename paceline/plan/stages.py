"""What the layers of a model cost, and the stages of a pipeline that are equally heavy by it.

The cost is FLOPs of one token (``model.CONVENTION``). The embedding is a lookup, and costs nothing; the head is a
product with the whole vocabulary, and often weighs as much as several layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from paceline.plan.layout import Layout
from paceline.plan.model import Widths, kinds, last_flops, layer_flops
from paceline.plan.pipeline.balance import split

if TYPE_CHECKING:
    from paceline.plan.pipeline.clock import Seconds


def layer_costs(widths: Widths, sequence_length: int) -> list[int]:
    """FLOPs of each layer for one token, by its number."""
    found = {n: sum(layer_flops(kind, sequence_length)) for kind, which in kinds(widths) for n in which}
    return [found[n] for n in range(widths.num_hidden_layers)]


def stage_layers(layout: Layout, widths: Widths, sequence_length: int) -> list[range]:
    """The layers of each stage, the heaviest as light as can be, head counted."""
    return list(_split(widths, sequence_length, layout.stages))


@lru_cache(maxsize=4096)
def _split(widths: Widths, sequence_length: int, stages: int) -> tuple[range, ...]:
    return tuple(split(layer_costs(widths, sequence_length), 0, last_flops(widths, sequence_length), stages))


def stage_units(stages: Sequence[range], widths: Widths, sequence_length: int) -> list[Seconds]:
    """What a micro-batch takes in each stage, in units of which the mean stage's forward takes one; the two halves
    of the backward take as long as the forward."""
    from paceline.plan.pipeline.clock import Seconds

    costs = layer_costs(widths, sequence_length)
    weights = [sum(costs[n] for n in layers) for layers in stages]
    weights[-1] += last_flops(widths, sequence_length)
    mean = sum(weights) / len(weights)
    return [Seconds(weight / mean, weight / mean, weight / mean) for weight in weights]

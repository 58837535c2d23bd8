"""The price of ``tp``: activations travel around every sub-layer that is cut (sequence parallel, always).

A layer of T tokens and h features, w bytes each: an all-gather in front of attention and of the MLP, a
reduce-scatter behind, and their mirror images in backward: eight messages of T·h·w. Routed experts need none, their
tokens stay in the stream. Recompute gathers and scatters once more. Embedding: one reduce-scatter and its mirror;
head: one gather and its mirror, and two numbers a token for the maximum and the sum.
"""

from __future__ import annotations

from paceline.plan.columns import Column
from paceline.plan.cost.held import Held, dense_shards
from paceline.plan.cost.sheaf import Priced
from paceline.plan.cost.terms import Delivered, Work, group_of
from paceline.plan.speed.speeds import Speeds


def deliver(
    layout: Priced, work: Work, speeds: Speeds, devices: Column, held: Held, rows: Column
) -> Delivered:
    """Of one micro-batch of ``rows`` through one rank's part of the model. Nothing hides it: it is in the way."""
    if layout.tp == 1:
        return Delivered()
    group = group_of(layout.tp, 1, devices)
    size = rows * work.sequence_length / layout.cp * work.widths.hidden_size * work.weight_bytes
    pair = speeds.collective_s("all_gather", size, group) + speeds.collective_s("reduce_scatter", size, group)
    again = 1.5 if layout.recompute != "none" else 1.0
    pairs: float = sum(
        part.count * again * 2 * (1 + bool(part.kind.intermediate_size)) for part in held.layers
    )
    pairs += held.embeds + held.predicts
    small: Column = 0.0
    if held.predicts:
        numbers = rows * work.sequence_length / layout.cp * 3 * work.master_bytes
        small = speeds.collective_s("all_reduce", numbers, group)
    seconds = pairs * pair + small
    sent = 2 * pairs * size * (layout.tp - 1) / layout.tp
    return Delivered(seconds, seconds, sent)


def sums(layout: Priced, work: Work, speeds: Speeds, devices: Column, held: Held) -> Delivered:
    """Gradients of the weights that tp does not cut: each rank has those of its part of the tokens; once a step."""
    if layout.tp == 1:
        return Delivered()
    whole = sum(part.parameters.whole * part.count for part in held.layers) + held.outer - held.tables
    size = whole * work.gradient_bytes / dense_shards(layout)
    seconds = speeds.collective_s("all_reduce", size, group_of(layout.tp, 1, devices))
    return Delivered(seconds, seconds, 2 * (layout.tp - 1) / layout.tp * size)

"""The price of ``cp``: keys and values, or heads, travel around every attention.

allgather   keys and values of all tokens are gathered, their gradients reduce-scattered
ulysses     two all-to-alls forward (q, k and v there, the output back) and two backward

The ranks of a row have equal work (zig-zag), so there is no waiting to pay. Weights are held by context shards too:
fsdp counts them among its shards, and without fsdp their gradients are summed with dp's.
"""

from __future__ import annotations

from math import lcm

from paceline.plan.columns import Column
from paceline.plan.cost.held import Held
from paceline.plan.cost.sheaf import Priced
from paceline.plan.cost.terms import Delivered, Work, group_of
from paceline.plan.model import Widths, key_width, query_width, value_width
from paceline.plan.speed.speeds import Speeds


def deliver(
    layout: Priced, work: Work, speeds: Speeds, devices: Column, held: Held, rows: Column
) -> Delivered:
    """Of one micro-batch of ``rows`` through one rank's part of the model. Nothing hides it: it is in the way."""
    if layout.cp == 1:
        return Delivered()
    group = group_of(layout.cp, layout.tp, devices)
    tokens = rows * work.sequence_length
    again = 1.5 if layout.recompute != "none" else 1.0  # the forward half, once more
    seconds: Column = 0.0
    sent: Column = 0.0
    for part in held.layers:
        if layout.cp_kind == "ulysses":
            size = tokens / layout.cp * work.weight_bytes * _exchanged(part.kind, layout.cp)
            one = 2 * speeds.collective_s("all_to_all", size, group)
        else:
            size = tokens * work.weight_bytes * _gathered(part.kind)
            one = speeds.collective_s("all_gather", size, group)
            one += speeds.collective_s("reduce_scatter", size, group)
        seconds += part.count * again * one
        sent += part.count * again * 2 * size * (layout.cp - 1) / layout.cp
    return Delivered(seconds, seconds, sent)


def _gathered(kind: Widths) -> int:
    """Keys and values of a token."""
    return key_width(kind) + (value_width(kind) if kind.kv_lora_rank else key_width(kind))


def _exchanged(kind: Widths, cp: int) -> float:
    """Query, key, value and output of a token; keys are repeated until ``cp`` divides their heads."""
    repeated = lcm(kind.num_key_value_heads, cp) / kind.num_key_value_heads
    return query_width(kind) + repeated * _gathered(kind) + value_width(kind)


def kept_bytes(layout: Priced, work: Work, kind: Widths, tokens: Column) -> Column:
    """What a layer keeps for backward beside what it keeps without cp.

    allgather: keys and values of the whole row in place of its own, the output once more in the order of the
    zig-zag, and a mask for each of its two chunks (2·cp of them, of which all ranks see the same sum of keys).
    """
    if layout.cp == 1:
        return 0.0
    output = tokens * value_width(kind)
    if layout.cp_kind == "ulysses":
        return work.weight_bytes * output
    seen = work.sequence_length**2 * (2 * layout.cp + 1) / (4 * layout.cp**2)
    others = (layout.cp - 1) * tokens * _gathered(kind)
    return work.weight_bytes * (others + output + seen)

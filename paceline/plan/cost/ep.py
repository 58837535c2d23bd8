"""The price of ``ep``: tokens travel to their experts and back, four all-to-alls a layer and micro-batch.

Each carries the K copies of a token's h features: dispatch and combine, forward and backward. ``ep`` does not divide
what a rank's experts compute or keep: it sends away as many tokens as it gets, when the router is balanced.
"""

from __future__ import annotations

from paceline.plan.columns import Column
from paceline.plan.cost.held import Held
from paceline.plan.cost.sheaf import Priced
from paceline.plan.cost.terms import Delivered, Work, group_of
from paceline.plan.speed.speeds import Speeds

HOTTEST = 1.1  # the fullest rank's share of the tokens over the mean, with a balance loss
COUNTS_S = 0.1e-3  # how many tokens come: a small exchange that the host waits for, forward only


def deliver(
    layout: Priced, work: Work, speeds: Speeds, devices: Column, held: Held, rows: Column
) -> Delivered:
    """Of one micro-batch of ``rows`` through one rank's part of the model. Nothing hides it: it is in the way."""
    if layout.ep == 1:
        return Delivered()
    group = group_of(layout.ep, layout.etp, devices)
    tokens = rows * work.sequence_length / (layout.cp * layout.tp) * layout.etp
    again = 1.5 if layout.recompute != "none" else 1.0
    seconds: Column = 0.0
    sent: Column = 0.0
    host = 0.0
    for part in held.layers:
        if not part.kind.num_experts:
            continue
        size = HOTTEST * tokens * part.kind.num_experts_per_tok * part.kind.hidden_size * work.weight_bytes
        seconds += part.count * again * 4 * speeds.collective_s("all_to_all", size, group)
        sent += part.count * again * 4 * size * (layout.ep - 1) / layout.ep
        host += part.count * COUNTS_S
    return Delivered(seconds, seconds, sent, host)

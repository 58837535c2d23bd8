"""The price of ``dp``: gradients are summed over all who hold the same weights, once a step.

Replicas (torch's DDP, in buckets), context shards that fsdp does not cut, and the ranks with the same experts. With
fsdp beside it only the shards are summed, after their reduce-scatter; experts are then sharded over all of theirs.
"""

from __future__ import annotations

from paceline.plan.columns import Column, most, rounded, some
from paceline.plan.cost.held import Held, dense_shards, same_experts
from paceline.plan.cost.sheaf import Priced
from paceline.plan.cost.terms import Delivered, Work, group_of
from paceline.plan.speed.speeds import Group, Speeds

BUCKET_BYTES = 25 << 20
HOST_S = 1e-3


def replicas(layout: Priced) -> Column:
    """Ranks that hold the same dense weights, and are not summed by fsdp."""
    return layout.dp * (1 if layout.sharded else layout.cp)


def group(layout: Priced, devices: Column) -> Group:
    """The replicas: they stand a whole set of shards apart, so few of them share a host."""
    return group_of(replicas(layout), dense_shards(layout) * layout.tp, devices)


def deliver(
    layout: Priced, work: Work, speeds: Speeds, devices: Column, held: Held, backward_s: Column
) -> Delivered:
    """All-reduces of the gradients; hidden by the last micro-batch's backward but for the last bucket."""
    found = Delivered()
    several = replicas(layout) > 1
    if some(several):
        size = held.dense * work.gradient_bytes / dense_shards(layout)
        found += _summed(layout, speeds, size, group(layout, devices), backward_s).where(several)
    several = same_experts(layout) > 1
    if held.experts and not layout.sharded and some(several):
        size = held.experts * work.gradient_bytes
        ranks = group_of(same_experts(layout), layout.ep * layout.etp, devices)
        found += _summed(layout, speeds, size, ranks, backward_s).where(several)
    return found


def _summed(layout: Priced, speeds: Speeds, size: Column, ranks: Group, backward_s: Column) -> Delivered:
    buckets = most(1, rounded(size / BUCKET_BYTES))
    one = speeds.collective_s("all_reduce", size / buckets, ranks)
    copies = speeds.copy_s(2 * size, layout.world_size) if not layout.sharded else 0.0
    total = buckets * one + copies
    exposed = total if not speeds.overlaps else one + most(0.0, total - one - 0.9 * backward_s)
    sent = 2 * (ranks.ranks - 1) / ranks.ranks * size
    return Delivered(total, exposed, sent, 0.0 if layout.sharded else HOST_S)


def memory(layout: Priced, work: Work, held: Held) -> dict[str, Column]:
    """DDP's buckets hold a second copy of the gradients; where an axis stands beside dp, the runtime does without DDP
    (``deliver/held.py``) and sums them where they are."""
    if layout.sharded or layout.tp * layout.pp * layout.cp * layout.ep > 1:
        return {}
    copied = held.dense * (layout.dp > 1)
    return {"buckets": 1.0 * work.gradient_bytes * copied} if some(copied) else {}

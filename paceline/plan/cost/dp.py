"""The price of ``dp``: gradients are summed over all who hold the same weights, once a step.

Replicas (torch's DDP, in buckets), context shards that fsdp does not cut, and the ranks with the same experts. With
fsdp beside it only the shards are summed, after their reduce-scatter; experts are then sharded over all of theirs.
"""

from __future__ import annotations

from paceline.plan.cost.held import Held, dense_shards, same_experts
from paceline.plan.cost.terms import Delivered, Work, group_of
from paceline.plan.layout import Layout
from paceline.plan.speed.speeds import Group, Speeds

BUCKET_BYTES = 25 << 20
HOST_S = 1e-3


def replicas(layout: Layout) -> int:
    """Ranks that hold the same dense weights, and are not summed by fsdp."""
    return layout.dp * (layout.cp if layout.fsdp == 1 else 1)


def group(layout: Layout, devices: int) -> Group:
    """The replicas: they stand a whole set of shards apart, so few of them share a host."""
    return group_of(replicas(layout), dense_shards(layout) * layout.tp, devices)


def deliver(
    layout: Layout, work: Work, speeds: Speeds, devices: int, held: Held, backward_s: float
) -> Delivered:
    """All-reduces of the gradients; hidden by the last micro-batch's backward but for the last bucket."""
    found = Delivered()
    if replicas(layout) > 1:
        size = held.dense * work.gradient_bytes / dense_shards(layout)
        found += _summed(layout, speeds, size, group(layout, devices), backward_s)
    same = same_experts(layout)
    if held.experts and layout.fsdp == 1 and same > 1:
        size = held.experts * work.gradient_bytes
        found += _summed(layout, speeds, size, group_of(same, layout.ep * layout.etp, devices), backward_s)
    return found


def _summed(layout: Layout, speeds: Speeds, size: float, ranks: Group, backward_s: float) -> Delivered:
    buckets = max(1, round(size / BUCKET_BYTES))
    one = speeds.collective_s("all_reduce", size / buckets, ranks)
    copies = speeds.copy_s(2 * size, layout.world_size) if layout.fsdp == 1 else 0.0
    total = buckets * one + copies
    exposed = total if not speeds.overlaps else one + max(0.0, total - one - 0.9 * backward_s)
    sent = 2 * (ranks.ranks - 1) / ranks.ranks * size
    return Delivered(total, exposed, sent, HOST_S if layout.fsdp == 1 else 0.0)


def memory(layout: Layout, work: Work, held: Held) -> dict[str, float]:
    """The buckets hold a second copy of the gradients."""
    if layout.fsdp > 1:
        return {}
    copied = held.dense if replicas(layout) > 1 else 0
    copied += held.experts if same_experts(layout) > 1 else 0
    return {"buckets": float(work.gradient_bytes * copied)} if copied else {}

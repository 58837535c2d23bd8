"""The price of ``dp``: every gradient is summed over the replicas once a step (torch's DDP, in buckets)."""

from __future__ import annotations

from paceline.plan.cost.terms import Delivered, Work
from paceline.plan.layout import Layout
from paceline.plan.speed.speeds import Group, Speeds

BUCKET_BYTES = 25 << 20
HOST_S = 1e-3


def group(layout: Layout, devices: int) -> Group:
    """The replicas: they stand ``fsdp`` ranks apart, so few of them share a host."""
    return Group(layout.dp, max(1, min(layout.dp, devices // layout.fsdp)))


def deliver(layout: Layout, work: Work, speeds: Speeds, devices: int, backward_s: float) -> Delivered:
    """All-reduce of the gradients; hidden by the last micro-batch's backward but for the last bucket.

    With fsdp beside it only the shards are summed, after their reduce-scatter.
    """
    if layout.dp == 1:
        return Delivered()
    size = work.count.total * work.gradient_bytes / layout.fsdp
    buckets = max(1, round(size / BUCKET_BYTES))
    one = speeds.collective_s("all_reduce", size / buckets, group(layout, devices))
    copies = speeds.copy_s(2 * size, layout.world_size) if layout.fsdp == 1 else 0.0
    total = buckets * one + copies
    exposed = total if not speeds.overlaps else one + max(0.0, total - one - 0.9 * backward_s)
    sent = 2 * (layout.dp - 1) / layout.dp * size
    return Delivered(total, exposed, sent, HOST_S if layout.fsdp == 1 else 0.0)


def memory(layout: Layout, work: Work) -> dict[str, float]:
    """DDP's buckets hold a second copy of the gradients."""
    if layout.dp == 1 or layout.fsdp > 1:
        return {}
    return {"buckets": float(work.gradient_bytes * work.count.total)}

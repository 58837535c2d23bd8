"""The whole price of a layout: what each axis adds to one rank's step, and what the fullest rank must hold."""

from __future__ import annotations

from paceline.plan.cluster import Cluster
from paceline.plan.cost import cp, dp, ep, fsdp, pp, single, tp
from paceline.plan.cost.held import Held, alike, held_by, rank_states, same_experts
from paceline.plan.cost.terms import Delivered, Estimate, Work, micro_batches, padding_rows
from paceline.plan.layout import Layout
from paceline.plan.speed.speeds import Speeds

CONTENTION = 1.1  # compute beside overlapped communication is slower by this
SLACK = 1.10  # allocator: reserved over allocated
COMMUNICATOR_BYTES = 500 << 20  # NCCL buffers of one process group
INSIDE = (tp, cp, ep, pp)
"""Axes whose messages lie inside each micro-batch."""

Memory = tuple[dict[str, float], float, float, float]


def memory_of(layout: Layout, work: Work, speeds: Speeds, cluster: Cluster) -> Memory:
    """(bytes by purpose, allocated, reserved, device) of the fullest rank; on a CPU the last two are resident."""
    places = alike(held_by(layout, work.widths, work.sequence_length))
    # Earlier coordinates have more micro-batches in flight, so of those that hold the same the first is fullest.
    parts = max((_rank_memory(layout, work, held, first) for held, _, first in places), key=_sum)
    allocated = _sum(parts)
    reserved = allocated * SLACK
    if cluster.is_cpu:
        resident = reserved + speeds.base_bytes
        return parts, allocated, resident, resident
    return parts, allocated, reserved, reserved + speeds.base_bytes + groups(layout) * COMMUNICATOR_BYTES


def _sum(parts: dict[str, float]) -> float:
    return sum(parts.values())


def _rank_memory(layout: Layout, work: Work, held: Held, place: int) -> dict[str, float]:
    parts = single.memory(layout, work, held, place)
    parts |= dp.memory(layout, work, held) | fsdp.memory(layout, work, held)
    if micro_batches(layout, work.global_batch)[1] == 1:
        # One micro-batch: gradients appear as activations go, so the larger of the two is the peak.
        both = min(parts["activations"], parts["gradients"])
        parts["gradients"] -= both * 0.5 if layout.fsdp > 1 else both
    return parts


def groups(layout: Layout) -> int:
    """Communicators of a rank."""
    found = sum(layout.degree(axis) > 1 for axis in ("tp", "pp", "cp", "ep", "fsdp"))
    found += dp.replicas(layout) > 1
    return found + (layout.ep > 1 and same_experts(layout) > 1)


def estimate(
    layout: Layout, work: Work, speeds: Speeds, cluster: Cluster, memory: Memory | None = None
) -> Estimate:
    """Seconds, bytes and memory of one step of ``layout``, which is closed and has its micro-batch.

    ``memory``: of this layout, where it has been asked already.
    """
    rows, micros = micro_batches(layout, work.global_batch)
    devices = layout.world_size if cluster.is_cpu else cluster.near
    places = alike(held_by(layout, work.widths, work.sequence_length))
    each = [
        (
            single.compute_s(layout, work, speeds, held, rows),
            sum((axis.deliver(layout, work, speeds, devices, held, rows) for axis in INSIDE), Delivered()),
        )
        for held, _, _ in places
    ]
    one, inside = max(each, key=lambda pair: pair[0] + pair[1].exposed_s)
    everyone = sum(
        count * (seconds + sent.exposed_s)
        for (seconds, sent), (_, count, _) in zip(each, places, strict=True)
    )
    factors = speeds.factors
    idle = factors.idle * pp.waiting(layout) * (everyone - one - inside.exposed_s)
    fullest = max((held for held, _, _ in places), key=lambda held: rank_states(layout, held))
    compute = micros * one
    delivered = inside.times(micros)
    delivered += fsdp.deliver(layout, work, speeds, devices, fullest, compute)
    delivered += dp.deliver(layout, work, speeds, devices, fullest, 2 / 3 * one)
    delivered += tp.sums(layout, work, speeds, devices, fullest)
    delivered += pp.tied(layout, work, speeds, devices, fullest)
    hidden = delivered.total_s - delivered.exposed_s
    if speeds.overlaps and hidden > 0:
        compute += (CONTENTION - 1) * factors.contention * min(compute, hidden)
    seconds = {
        "compute": compute,
        "deliver": factors.exposed * delivered.exposed_s,
        "update": speeds.optimizer_s(rank_states(layout, fullest), layout.world_size),
        "host": factors.host * (single.host_s(layout, work) + delivered.host_s),
        "idle": idle,
    }
    padding = padding_rows(layout, work.global_batch) / (rows * micros * layout.data_degree)
    parts, allocated, reserved, device = memory or memory_of(layout, work, speeds, cluster)
    return Estimate(
        layout=layout,
        seconds=seconds,
        hidden_s=hidden,
        padding_s=compute * padding,
        recompute_s=compute * (1 - 1 / single.recomputed(layout, speeds)),
        sent_bytes=delivered.sent_bytes,
        memory=parts,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
    )

"""The whole price of a layout: what each axis adds to one rank's step, and what the fullest rank must hold."""

from __future__ import annotations

from dataclasses import replace

from paceline.plan.cluster import Cluster
from paceline.plan.columns import Column, choose, index_of_most, is_column, least, most, some
from paceline.plan.cost import cp, dp, ep, fsdp, pp, single, tp
from paceline.plan.cost.held import Alike, places, rank_states, same_experts
from paceline.plan.cost.peak import moments, rank_of
from paceline.plan.cost.sheaf import Priced
from paceline.plan.cost.terms import Delivered, Estimate, Work, micro_batches, padding_rows
from paceline.plan.speed.speeds import Speeds

CONTENTION = 1.1  # compute beside overlapped communication is slower by this
SLACK = 1.10  # allocator: reserved over allocated
COMMUNICATOR_BYTES = 500 << 20  # NCCL buffers of one process group
INSIDE = (tp, cp, ep, pp)
"""Axes whose messages lie inside each micro-batch."""

Memory = tuple[dict[str, float], Column, Column, Column]


def memory_of(layout: Priced, work: Work, speeds: Speeds, cluster: Cluster) -> Memory:
    """(bytes by purpose, allocated, reserved, device) of the fullest rank; on a CPU the last two are resident.

    Of a sheaf the bytes are columns, and not told apart by purpose.
    """
    # Earlier coordinates have more micro-batches in flight, so of those that hold the same the first is fullest.
    ranks = [
        parts
        for held, _, first in places(layout, work.widths, work.sequence_length)
        for parts in moments(rank_of(layout, work, held, first)).values()
    ]
    sums = [sum(parts.values()) for parts in ranks]
    fullest = index_of_most(sums)
    parts = {} if is_column(fullest) else ranks[fullest]
    allocated = most(*sums)
    reserved = allocated * SLACK
    if cluster.is_cpu:
        resident = reserved + speeds.base_bytes
        return parts, allocated, resident, resident
    return parts, allocated, reserved, reserved + speeds.base_bytes + groups(layout) * COMMUNICATOR_BYTES


def groups(layout: Priced) -> Column:
    """Communicators of a rank."""
    found: Column = sum(layout.degree(axis) > 1 for axis in ("tp", "pp", "cp", "ep"))
    found = found + layout.sharded + 1 * (dp.replicas(layout) > 1)
    return found + (layout.ep > 1) * (same_experts(layout) > 1)


def estimate(
    layout: Priced,
    work: Work,
    speeds: Speeds,
    cluster: Cluster,
    memory: Memory | None = None,
    idle_s: float | None = None,
) -> Estimate:
    """Seconds, bytes and memory of one step of ``layout``, which is closed and has its micro-batch.

    ``memory``: of this layout, where it has been asked already. ``idle_s``: of its schedule, where that was run.
    """
    rows, micros = micro_batches(layout, work.global_batch)
    devices = layout.world_size if cluster.is_cpu else cluster.near
    held = places(layout, work.widths, work.sequence_length)
    one, inside, everyone = micro_batch(layout, work, speeds, devices, rows, sends=idle_s is None)
    factors = speeds.factors
    waited = pp.waiting(layout, micros) * (everyone - one - inside.exposed_s) if idle_s is None else idle_s
    compute = micros * one
    delivered = inside.times(micros)
    once, states = _once_a_step(layout, work, speeds, devices, held, compute, one)
    delivered += once
    hidden = delivered.total_s - delivered.exposed_s
    if speeds.overlaps:
        beside = most(0.0, least(compute, hidden))
        compute = compute + (CONTENTION - 1) * factors.contention * beside
    seconds = {
        "compute": compute,
        "deliver": factors.exposed * delivered.exposed_s,
        "update": speeds.optimizer_s(states, layout.world_size),
        "host": factors.host * (single.host_s(layout, work) + delivered.host_s),
        "idle": factors.idle * waited,
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


def micro_batch(
    layout: Priced, work: Work, speeds: Speeds, devices: Column, rows: Column, *, sends: bool = True
) -> tuple[Column, Delivered, Column]:
    """Of the slowest coordinate: compute and messages of a micro-batch; and the seconds of all coordinates.

    ``sends``: whether anybody waits for what goes from stage to stage; where the schedule is run, that is in its
    waiting.
    """
    one: Column = 0.0
    inside, everyone = Delivered(), 0.0
    held = places(layout, work.widths, work.sequence_length)
    for place, (part, count, _) in enumerate(held):
        seconds = single.compute_s(layout, work, speeds, part, rows)
        each = {axis: axis.deliver(layout, work, speeds, devices, part, rows) for axis in INSIDE}
        # Compute hides half of what passes between stages, and never more than itself.
        waited = most(each[pp].exposed_s, each[pp].total_s - seconds)
        each[pp] = replace(each[pp], exposed_s=waited if sends else 0.0)
        sent = sum(each.values(), Delivered())
        everyone = everyone + count * (seconds + sent.exposed_s)
        slower = True if place == 0 else seconds + sent.exposed_s > one + inside.exposed_s
        one, inside = choose(slower, seconds, one), sent.where(slower, inside)
    return one, inside, everyone


def _once_a_step(
    layout: Priced,
    work: Work,
    speeds: Speeds,
    devices: Column,
    held: Alike,
    compute_s: Column,
    micro_batch_s: Column,
) -> tuple[Delivered, Column]:
    """What the rank with the most states sends beside its micro-batches, and how many states it has."""
    states = [rank_states(layout, part) for part, _, _ in held]
    fullest = index_of_most(states)
    found = Delivered()
    for place, (part, _, _) in enumerate(held):
        if some(fullest == place):
            sent = fsdp.deliver(layout, work, speeds, devices, part, compute_s)
            sent += dp.deliver(layout, work, speeds, devices, part, 2 / 3 * micro_batch_s)
            sent += tp.sums(layout, work, speeds, devices, part)
            sent += pp.tied(layout, work, speeds, devices, part)
            found = sent.where(fullest == place, found)
    return found, most(*states)

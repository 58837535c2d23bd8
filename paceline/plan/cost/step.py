"""The whole price of a layout: what each axis adds to one device's step, and what one rank must hold."""

from __future__ import annotations

from paceline.plan.cluster import Cluster
from paceline.plan.cost import dp, fsdp, single
from paceline.plan.cost.terms import Estimate, Work, micro_batches, padding_rows
from paceline.plan.layout import Layout
from paceline.plan.speed.speeds import Speeds

CONTENTION = 1.1  # compute beside overlapped communication is slower by this
SLACK = 1.10  # allocator: reserved over allocated
COMMUNICATOR_BYTES = 500 << 20  # NCCL buffers of one process group

Memory = tuple[dict[str, float], float, float, float]


def memory_of(layout: Layout, work: Work, speeds: Speeds, cluster: Cluster) -> Memory:
    """(bytes by purpose, allocated, reserved, device) of a rank; on a CPU the last two are resident bytes."""
    parts = single.memory(layout, work, layout.fsdp) | dp.memory(layout, work) | fsdp.memory(layout, work)
    micros = micro_batches(layout, work.global_batch)[1]
    if micros == 1:
        # One micro-batch: gradients appear as activations go, so the larger of the two is the peak.
        held = min(parts["activations"], parts["gradients"])
        parts["gradients"] -= held * 0.5 if layout.fsdp > 1 else held
    allocated = sum(parts.values())
    reserved = allocated * SLACK
    if cluster.is_cpu:
        resident = reserved + speeds.base_bytes
        return parts, allocated, resident, resident
    groups = (layout.dp > 1) + (layout.fsdp > 1)
    return parts, allocated, reserved, reserved + speeds.base_bytes + groups * COMMUNICATOR_BYTES


def estimate(layout: Layout, work: Work, speeds: Speeds, cluster: Cluster) -> Estimate:
    """Seconds, bytes and memory of one step of ``layout``, which is closed and has its micro-batch."""
    compute = single.compute_s(layout, work, speeds)
    rows, micros = micro_batches(layout, work.global_batch)
    devices = layout.world_size if cluster.is_cpu else cluster.devices
    delivered = fsdp.deliver(layout, work, speeds, devices, compute)
    delivered += dp.deliver(layout, work, speeds, devices, 2 / 3 * compute / micros)
    hidden = delivered.total_s - delivered.exposed_s
    if speeds.overlaps and hidden > 0:
        compute += (CONTENTION - 1) * min(compute, hidden)
    seconds = {
        "compute": compute,
        "deliver": delivered.exposed_s,
        "update": speeds.optimizer_s(work.count.total / layout.fsdp, layout.world_size),
        "host": single.host_s(layout, work) + delivered.host_s,
    }
    padding = padding_rows(layout, work.global_batch) / (rows * micros * layout.data_degree)
    parts, allocated, reserved, device = memory_of(layout, work, speeds, cluster)
    return Estimate(
        layout=layout,
        seconds=seconds,
        hidden_s=hidden,
        padding_s=compute * padding,
        sent_bytes=delivered.sent_bytes,
        memory=parts,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
    )

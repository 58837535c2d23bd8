"""The price of ``fsdp``: weights are gathered for use, gradients scattered to their owners (FSDP2).

zero3   gathers every block twice a micro-batch, reduce-scatters once a micro-batch
zero2   gathers once a step, reduce-scatters once a micro-batch
zero1   gathers once a step, reduce-scatters once a step; keeps whole gradients
"""

from __future__ import annotations

from paceline.plan.cost.terms import Delivered, Work, micro_batches
from paceline.plan.layout import Layout
from paceline.plan.speed.speeds import Group, Speeds

UNIT_HOST_S = 0.4e-3  # FSDP2's hooks around one block, forward and backward


def group(layout: Layout, devices: int) -> Group:
    """The shards: neighbouring ranks, so a host is filled first."""
    return Group(layout.fsdp, min(layout.fsdp, devices))


def deliver(layout: Layout, work: Work, speeds: Speeds, devices: int, compute_s: float) -> Delivered:
    """All-gathers and reduce-scatters of a step.

    Where compute hides them, the first gather, the last scatter and what is longer than the compute beside it
    stay exposed; elsewhere all of it does.
    """
    if layout.fsdp == 1:
        return Delivered()
    micros = micro_batches(layout, work.global_batch)[1]
    gathers = {"zero3": 2 * micros, "zero2": 1, "zero1": 1}[layout.zero]
    scatters = 1 if layout.zero == "zero1" else micros
    ranks, world = group(layout, devices), layout.world_size
    units = [(work.count.layer, work.count.layers), (work.count.outer, 1)]
    gather = scatter = 0.0
    for size, times in units:
        whole, summed = size * work.weight_bytes, size * work.gradient_bytes
        gather += times * (speeds.collective_s("all_gather", whole, ranks) + speeds.copy_s(whole, world))
        scatter += times * (
            speeds.collective_s("reduce_scatter", summed, ranks) + speeds.copy_s(summed, world)
        )
    total = gathers * gather + scatters * scatter
    exposed = total
    if speeds.overlaps:
        units_in_all = work.count.layers + 1
        ends = gather / units_in_all + scatter / units_in_all
        forward, backward = compute_s / 3, 2 * compute_s / 3
        in_backward = scatters * scatter + (micros * gather if layout.zero == "zero3" else 0.0)
        in_forward = gather * (micros if layout.zero == "zero3" else 1)
        exposed = ends + max(0.0, in_forward - forward) + max(0.0, in_backward - backward)
    part = (layout.fsdp - 1) / layout.fsdp
    params = work.count.total
    sent = part * params * (gathers * work.weight_bytes + scatters * work.gradient_bytes)
    return Delivered(total, exposed, sent, UNIT_HOST_S * (work.count.layers + 1) * micros)


def memory(layout: Layout, work: Work) -> dict[str, float]:
    """Whole weights that live beside the shards, and the buffers of a reduce-scatter."""
    if layout.fsdp == 1:
        return {}
    largest = max(work.count.layer, work.count.outer)
    # zero3: the unit at work, the one gathered ahead, and their gradients while they are scattered.
    live = largest + work.count.layer if layout.zero == "zero3" else work.count.total
    found = {
        "gathered weights": float(work.weight_bytes * live),
        "scatter buffers": float((work.weight_bytes + work.gradient_bytes) * largest),
    }
    if layout.zero == "zero1":
        found["whole gradients"] = float(work.gradient_bytes * work.count.total)
    return found

"""The price of ``fsdp``: weights are gathered for use, gradients scattered to their owners (FSDP2).

zero3   gathers every block twice a micro-batch, reduce-scatters once a micro-batch
zero2   gathers once a step, reduce-scatters once a micro-batch
zero1   gathers once a step, reduce-scatters once a step; keeps whole gradients

A rank gathers its own slice only, where tp or a pipeline cuts the model; context shards are among the shards.
Experts under ep are sharded over the ranks that hold the same ones.
"""

from __future__ import annotations

from paceline.plan.columns import Column, most
from paceline.plan.cost.held import Held, dense_shards, expert_shards
from paceline.plan.cost.sheaf import Priced
from paceline.plan.cost.terms import Delivered, Work, group_of, micro_batches
from paceline.plan.speed.speeds import Group, Speeds

UNIT_HOST_S = 0.4e-3  # FSDP2's hooks around one block, forward and backward


def group(layout: Priced, devices: Column) -> Group:
    """The shards: neighbouring ranks but for tp, so a host is filled first."""
    return group_of(dense_shards(layout), layout.tp, devices)


def expert_group(layout: Priced, devices: Column) -> Group:
    """The ranks with the same experts."""
    return group_of(expert_shards(layout), layout.ep * layout.etp, devices)


def units(layout: Priced, devices: Column, held: Held) -> list[tuple[int, int, Group]]:
    """(parameters, how many such units, over whom each is sharded), as FSDP2 gathers them."""
    found = [(held.unit(part), part.count, group(layout, devices)) for part in held.layers]
    found.append((held.outer, 1, group(layout, devices)))
    if held.apart:
        ranks = expert_group(layout, devices)
        found += [(part.parameters.experts, part.count, ranks) for part in held.layers]
    return [unit for unit in found if unit[0]]


def deliver(
    layout: Priced, work: Work, speeds: Speeds, devices: Column, held: Held, compute_s: Column
) -> Delivered:
    """All-gathers and reduce-scatters of a step.

    Where compute hides them, the first gather, the last scatter and what is longer than the compute beside it
    stay exposed; elsewhere all of it does.
    """
    if not layout.sharded:
        return Delivered()
    micros = micro_batches(layout, work.global_batch)[1]
    gathers = {"zero3": 2 * micros, "zero2": 1, "zero1": 1}[layout.zero]
    scatters = 1 if layout.zero == "zero1" else micros
    world = layout.world_size
    gather: Column = 0.0
    scatter: Column = 0.0
    sent: Column = 0.0
    for size, times, ranks in units(layout, devices, held):
        whole, summed = size * work.weight_bytes, size * work.gradient_bytes
        gather += times * (speeds.collective_s("all_gather", whole, ranks) + speeds.copy_s(whole, world))
        scatter += times * (
            speeds.collective_s("reduce_scatter", summed, ranks) + speeds.copy_s(summed, world)
        )
        sent += times * (ranks.ranks - 1) / ranks.ranks * (gathers * whole + scatters * summed)
    total = gathers * gather + scatters * scatter
    exposed = total
    if speeds.overlaps:
        units_in_all = held.depth + 1
        ends = gather / units_in_all + scatter / units_in_all
        forward, backward = compute_s / 3, 2 * compute_s / 3
        in_backward = scatters * scatter + (micros * gather if layout.zero == "zero3" else 0.0)
        in_forward = gather * (micros if layout.zero == "zero3" else 1)
        exposed = ends + most(0.0, in_forward - forward) + most(0.0, in_backward - backward)
    return Delivered(total, exposed, sent, UNIT_HOST_S * (held.depth + 1) * micros)


def largest(layout: Priced, held: Held) -> Column:
    """Parameters of the largest layer that are gathered: its experts, where several ranks hold the same."""
    shared = held.apart * (expert_shards(layout) > 1)
    return most(0, *(held.unit(part) + shared * part.parameters.experts for part in held.layers))


def gathered(layout: Priced, work: Work, held: Held, layers: int) -> dict[str, Column]:
    """Whole weights that live beside the shards: those outside the layers all step long, and so many layers."""
    if not layout.sharded:
        return {}
    if layout.zero == "zero3":
        whole = held.outer + layers * largest(layout, held)
    else:
        whole = held.dense + (expert_shards(layout) > 1) * held.experts
    return {"gathered weights": 1.0 * work.weight_bytes * whole}

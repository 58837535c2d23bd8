"""Every layout worth pricing: worlds up to the devices, their cuts into axes, micro-batches.

What cannot be is left out here by the arithmetic of ``degrees`` and of the schedules; what is never worth it, too:

- tp and ep stay inside a host (their messages are in the way of compute);
- tp, cp, pp are for a divisor of a host, for all hosts or half of them: what is between is cut by fsdp alone;
- cp is for rows so long that a part of one still fills a device;
- beside tp, pp, cp or ep the data ranks are all shards, all replicas, or shards on a host and replicas over hosts;
- pp takes 1f1b, interleaved where layers allow, and zbv, which needs kept weights; gpipe, which keeps more, never;
- recompute is tried where a layout does not fit without (``decide.judge``), offload and compile where asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.plan import degrees
from paceline.plan.cluster import Cluster
from paceline.plan.cost.terms import Work, micro_batches
from paceline.plan.grammar import KINDS
from paceline.plan.layout import Layout
from paceline.plan.pipeline.counts import takes

MOST_MICRO_BATCHES = 12
LARGEST_MICRO_BATCH_TOKENS = 1 << 20
MOST_ROWS_OF_A_CUT = 8  # rows of a micro-batch beside tp, pp, cp or ep: more fill no device better
SHORTEST_PART = 4096  # tokens of a row that a context shard keeps
MOST_CONTEXT = 8
MOST_TENSOR = 8
LARGEST_PIPELINE = 16


def layouts(cluster: Cluster, work: Work, wanted: Layout, *, coarse: bool = False) -> list[Layout]:
    """The layouts to price.

    Args:
        wanted: ``auto`` for all of them, its options kept; a layout for that one; both get micro-batches
            unless one is given.
        coarse: fewer numbers of ranks and fewer kinds, for a question beside the question.
    """
    if not wanted.auto:
        return list(with_micro_batches(wanted, work))
    found: list[Layout] = []
    for world in worlds(cluster, work, coarse):
        options = {"recompute": wanted.recompute, "offload": wanted.offload, "compile": wanted.compile}
        for one in cuts(world, cluster, work, coarse):
            asked = one.replace(**options, mbs=wanted.mbs) if _asks(wanted) else one
            found += with_micro_batches(asked, work, coarse=coarse)
    return found


def _asks(wanted: Layout) -> bool:
    return wanted != Layout(auto=True)


def worlds(cluster: Cluster, work: Work, coarse: bool = False) -> list[int]:
    """Numbers of ranks: up to 8 every one, then divisors and powers of two; beyond a host whole hosts."""
    devices = cluster.devices
    inside = [
        n for n in range(1, devices + 1) if (n <= 8 and not coarse) or devices % n == 0 or n & (n - 1) == 0
    ]
    hosts = [n for n in range(2, cluster.hosts + 1) if cluster.hosts % n == 0 or n & (n - 1) == 0]
    return inside + [n * devices for n in hosts]


def cuts(world: int, cluster: Cluster, work: Work, coarse: bool = False) -> Iterator[Layout]:
    """Each cut of ``world`` ranks into axes."""
    widths = work.widths
    inside = cluster.devices % world == 0
    deep = world == cluster.world or (not coarse and (inside or 2 * world == cluster.world))
    for tp in degrees.tp_degrees(widths) if deep else [1]:
        if world % tp or tp > min(MOST_TENSOR, cluster.devices):
            continue
        for cp in _contexts(world // tp, tp, work, coarse or not deep):
            for pp in degrees.divisors(world // (tp * cp)) if deep else [1]:
                if pp > min(LARGEST_PIPELINE, widths.num_hidden_layers):
                    break
                data = world // (tp * cp * pp)
                if data > work.global_batch:
                    continue
                yield from _with_experts(
                    Layout(tp=tp, cp=cp, pp=pp), data, cluster, work, coarse and tp * cp * pp > 1
                )


def _contexts(ranks: int, tp: int, work: Work, coarse: bool) -> list[int]:
    if coarse:
        return [1]
    length = work.sequence_length
    return [
        cp
        for cp in degrees.divisors(ranks)
        if length % degrees.token_unit(Layout(cp=cp, tp=tp)) == 0
        and (cp == 1 or (cp <= MOST_CONTEXT and length // cp >= SHORTEST_PART))
    ]


def _with_experts(model: Layout, data: int, cluster: Cluster, work: Work, coarse: bool) -> Iterator[Layout]:
    """The data ranks as dp and fsdp, the schedules, and the degrees of ep."""
    beside = model.tp * model.cp * model.pp > 1
    for cut in _data_cuts(model, data, cluster, beside, coarse):
        experts = [1]
        if work.widths.num_experts:
            ranks = min(degrees.expert_ranks(cut), cluster.devices)
            experts = [ep for ep in degrees.ep_degrees(work.widths, cut) if ep <= ranks]
            experts = [1, experts[-1]] if coarse and len(experts) > 1 else experts
        for ep in experts:
            for schedule, vpp in _schedules(cut, work, coarse):
                yield cut.replace(ep=ep, schedule=schedule, vpp=vpp) if ep > 1 or cut.pp > 1 else cut


def _data_cuts(model: Layout, data: int, cluster: Cluster, beside: bool, coarse: bool) -> Iterator[Layout]:
    """Into dp × fsdp, with each stage of fsdp."""
    stages = KINDS["fsdp"]
    shards = degrees.divisors(data)
    if beside:
        on_host = max(1, cluster.devices // (model.tp * model.cp))
        stages = ("zero3",) if coarse else ("zero3", "zero1") if model.pp == 1 else ("zero2", "zero1")
        shards = [n for n in shards if n in (1, data) or (n == on_host and not coarse)]
    for fsdp in shards:
        for zero in stages if fsdp > 1 else ("zero3",):
            yield model.replace(dp=data // fsdp, fsdp=fsdp, zero=zero)


def _schedules(cut: Layout, work: Work, coarse: bool) -> Iterator[tuple[str, int]]:
    yield "1f1b", 0
    if cut.pp == 1 or coarse:
        return
    if 2 * cut.pp <= work.widths.num_hidden_layers:
        yield "interleaved", 2
        if cut.fsdp == 1 or cut.zero != "zero3":
            yield "zbv", 2


def with_micro_batches(layout: Layout, work: Work, *, coarse: bool = False) -> Iterator[Layout]:
    """The layout with each micro-batch worth trying: powers of two, and the rank's share of the batch."""
    if layout.mbs is not None or layout.world_size == 0:
        yield layout
        return
    rows = layout.data_rows(work.global_batch)
    sizes = {1 << i for i in range(MOST_MICRO_BATCHES) if 1 << i <= rows} | {rows}
    beside = layout.tp * layout.pp * layout.cp * layout.ep > 1
    if beside:
        sizes = {n for n in sizes if n <= MOST_ROWS_OF_A_CUT and (not coarse or n in (1, 4))}
    fits = [n for n in sorted(sizes) if n == 1 or n * work.sequence_length <= LARGEST_MICRO_BATCH_TOKENS]
    for mbs in fits:
        one = layout.replace(mbs=mbs)
        if one.pp == 1 or takes(one, micro_batches(one, work.global_batch)[1]):
            yield one

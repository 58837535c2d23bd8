"""Every layout worth pricing: worlds up to the devices, their cuts into dp × fsdp, micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.plan.cluster import Cluster
from paceline.plan.cost.terms import Work
from paceline.plan.grammar import KINDS
from paceline.plan.layout import Layout

MOST_MICRO_BATCHES = 12
LARGEST_MICRO_BATCH_TOKENS = 1 << 20


def layouts(cluster: Cluster, work: Work, wanted: Layout, *, coarse: bool = False) -> list[Layout]:
    """The layouts to price.

    Args:
        wanted: ``auto`` for all of them, its options kept; a layout for that one; both get micro-batches
        unless
            one is given.
        coarse: fewer numbers of ranks, for a question beside the question.
    """
    if wanted.auto:
        bare = [cut for world in worlds(cluster, work, coarse) for cut in cuts(world)]
        bare = [cut.replace(recompute=wanted.recompute, offload=wanted.offload) for cut in bare]
        bare = [cut.replace(compile=wanted.compile, mbs=wanted.mbs) for cut in bare]
    else:
        bare = [wanted]
    return [full for cut in bare for full in with_micro_batches(cut, work)]


def worlds(cluster: Cluster, work: Work, coarse: bool = False) -> list[int]:
    """Numbers of ranks: up to 8 every one, then divisors and powers of two; beyond a host whole hosts."""
    devices = cluster.devices
    inside = [
        n for n in range(1, devices + 1) if (n <= 8 and not coarse) or devices % n == 0 or n & (n - 1) == 0
    ]
    hosts = [n for n in range(2, cluster.hosts + 1) if cluster.hosts % n == 0 or n & (n - 1) == 0]
    return [n for n in inside + [n * devices for n in hosts] if n <= work.global_batch]


def cuts(world: int) -> Iterator[Layout]:
    """Each factorisation of ``world`` into dp × fsdp, with each stage of fsdp."""
    for fsdp in range(1, world + 1):
        if world % fsdp == 0:
            for zero in KINDS["fsdp"] if fsdp > 1 else ("zero3",):
                yield Layout(dp=world // fsdp, fsdp=fsdp, zero=zero)


def with_micro_batches(layout: Layout, work: Work) -> Iterator[Layout]:
    """The layout with each micro-batch worth trying: powers of two, and the rank's share of the batch."""
    if layout.mbs is not None or layout.world_size == 0:
        yield layout
        return
    rows = layout.data_rows(work.global_batch)
    sizes = {1 << i for i in range(MOST_MICRO_BATCHES) if 1 << i <= rows} | {rows}
    fits = [n for n in sorted(sizes) if n == 1 or n * work.sequence_length <= LARGEST_MICRO_BATCH_TOKENS]
    for mbs in fits:
        yield layout.replace(mbs=mbs)

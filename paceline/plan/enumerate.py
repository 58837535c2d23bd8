"""The space of the search: every layout whose degrees divide, in the order cut → depth → share.

A *cut* says how a layer is cut (tp, cp, ep, etp), a *depth* how the layers lie on a pipeline (pp, schedule, vpp), a
*share* how the ranks that are left divide the batch (dp, fsdp and its stage, the micro-batch); ``recompute`` is free.
Of a huge space only cuts and depths are ever listed: shares are columns (``plan/cost/sheaf.py``), or only counted.

What divides: worlds are up to 8 ranks every number, else divisors of a host or of the hosts and powers of two, by
whole hosts; degrees multiply to the world; a cut divides heads, experts and tokens (``degrees``); a stage has a
layer, and there are no more stages than the layers of the fullest one ask for; a rank has a row; a micro-batch is a
power of two or a divisor of a rank's rows, in the one shape that it comes to. What divides and still cannot run is
for the rule book to say. ``offload`` and ``compile`` are as asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil

from paceline.plan import degrees
from paceline.plan.broken import SPLIT_BACKWARD
from paceline.plan.cluster import Cluster
from paceline.plan.cost.terms import Work, micro_batches
from paceline.plan.grammar import KINDS, OPTIONS
from paceline.plan.layout import Layout
from paceline.plan.pipeline.counts import takes

NARROW_PIPELINE = 16
NARROW_ROWS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Cut:
    """How a layer, and the row that it sees, are cut."""

    tp: int = 1
    cp: int = 1
    cp_kind: str = "allgather"
    ep: int = 1
    etp: int = 1


@dataclass(frozen=True)
class Depth:
    """How the layers lie on a pipeline."""

    pp: int = 1
    schedule: str = "1f1b"
    vpp: int = 1


@dataclass(frozen=True)
class Share:
    """Ranks that share the batch: how many in all, data ranks, rows of a micro-batch and how many of those."""

    world: int
    degree: int
    mbs: int
    micros: int


@dataclass(frozen=True)
class Space:
    """All layouts of some numbers of ranks.

    Attributes:
        worlds: numbers of ranks, in order.
        options: a layout whose ``mbs``, ``recompute``, ``offload`` and ``compile`` are kept where they are given.
        narrow: fewer of each kind, for a question beside the question.
    """

    cluster: Cluster
    work: Work
    worlds: tuple[int, ...]
    options: Layout
    narrow: bool = False

    @cached_property
    def recomputes(self) -> tuple[str, ...]:
        asked = self.options.recompute
        return OPTIONS["recompute"] if asked == "none" else (asked,)

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """Simple ones first."""
        most = self.worlds[-1] if self.worlds else 0
        found = []
        for tp in degrees.tp_degrees(self.work.widths):
            if tp > min(most, self.work.widths.vocab_size) or self.work.sequence_length % tp:
                continue
            if self.narrow and tp > self.cluster.near:
                continue
            for cp, kind in self._contexts(most // tp, tp):
                found += [Cut(tp, cp, kind, ep, etp) for ep, etp in self._experts(tp)]
        return tuple(found)

    def _contexts(self, most: int, tp: int) -> Iterator[tuple[int, str]]:
        yield 1, KINDS["cp"][0]
        length = self.work.sequence_length
        for cp in degrees.divisors(length) if not self.narrow or length >= 1 << 16 else ():
            fits = 1 < cp <= most and length % degrees.token_unit(Layout(cp=cp, tp=tp)) == 0
            if fits:
                yield cp, "allgather"
            if fits and cp in degrees.ulysses_degrees(self.work.widths, Layout(tp=tp)):
                yield cp, "ulysses"

    def _experts(self, tp: int) -> Iterator[tuple[int, int]]:
        yield 1, 1
        widths = self.work.widths
        if not widths.num_experts:
            return
        for ep in degrees.divisors(widths.num_experts):
            if self.narrow and not self.cluster.near // 2 < ep <= self.cluster.near:
                continue
            if ep > 1:
                yield ep, 1
            if 1 < tp <= widths.moe_intermediate_size and not self.narrow:
                yield ep, tp

    @cached_property
    def depths(self) -> tuple[Depth, ...]:
        layers = self.work.widths.num_hidden_layers
        found = [Depth()]
        for pp in sorted({pp for world in self.worlds for pp in degrees.divisors(world)}):
            if not 1 < pp <= (min(layers, NARROW_PIPELINE) if self.narrow else layers):
                continue
            found.append(Depth(pp, "1f1b"))
            if not self.narrow:
                found.append(Depth(pp, "gpipe"))
            for vpp in _laps(layers, pp):
                if not self.narrow:
                    found += [Depth(pp, "interleaved", vpp), Depth(pp, "zero-bubble", vpp)]
                if vpp == 2:
                    found += [Depth(pp, "interleaved", 2)] if self.narrow else []
                    found += [Depth(pp, "zbv", 2)]
                    found += [] if self.narrow else [Depth(pp, "dualpipev", 2)]
        return tuple(found)

    def model(self, cut: Cut, depth: Depth, recompute: str = "none") -> Layout:
        """What all shares of a cut and a depth have in common."""
        return _model(cut, depth, recompute, self.options.offload, self.options.compile)

    def shares(self, cut: Cut, depth: Depth) -> tuple[Share, ...]:
        """Those whose experts divide the ranks of a stage."""
        found = self.shares_of(cut.tp * cut.cp * depth.pp)
        inner = cut.ep * cut.etp
        if inner == 1:
            return found
        return tuple(share for share in found if share.world // depth.pp % inner == 0)

    def shares_of(self, taken: int) -> tuple[Share, ...]:
        """Those beside a cut and a depth of so many ranks."""
        return _shares(self.worlds, taken, self.work.global_batch, self.options.mbs, self.narrow)

    def shards(self, degree: int) -> tuple[int, ...]:
        """Degrees of fsdp above 1."""
        return (degree,) * (degree > 1) if self.narrow else _above_one(degree)

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """Of fsdp, the simplest first."""
        return KINDS["fsdp"]

    @cached_property
    def total(self) -> tuple[int, int]:
        """(layouts that divide, those of them that the rule book refuses), counted without listing them."""
        cuts = Counter((cut.tp * cut.cp, cut.ep * cut.etp) for cut in self.cuts)
        depths = Counter((depth.pp, depth.schedule) for depth in self.depths)
        divide = refused = 0
        for (pp, schedule), deep in depths.items():
            for taken in {ranks for ranks, _ in cuts}:
                by_world = self._by_world(taken, Depth(pp, schedule, 2))
                for (ranks, inner), many in cuts.items() if by_world else ():
                    fits = [n for world, n in by_world.items() if world // pp % inner == 0 and ranks == taken]
                    divide += deep * many * sum(more for more, _ in fits)
                    refused += deep * many * sum(less for _, less in fits)
        return divide * len(self.recomputes), refused * len(self.recomputes)

    def _by_world(self, taken: int, depth: Depth) -> dict[int, tuple[int, int]]:
        """Of each world the layouts that divide, and those of them that are refused."""
        found: dict[int, tuple[int, int]] = {}
        model = Layout(pp=depth.pp, schedule=depth.schedule, vpp=depth.vpp)
        for share in self.shares_of(taken * depth.pp):
            sharded = len(self.shards(share.degree)) * len(self.stages)
            refused = 1 + sharded if not takes(model, share.micros) else 0
            if not refused and splits_backward(depth):
                refused = len(self.shards(share.degree))
            more, less = found.get(share.world, (0, 0))
            found[share.world] = more + 1 + sharded, less + refused
        return found

    def layouts(self) -> Iterator[Layout]:
        """Every layout, one by one: for a space that is small."""
        for cut in self.cuts:
            for depth in self.depths:
                shares = self.shares(cut, depth)
                for recompute in self.recomputes if shares else ():
                    model = self.model(cut, depth, recompute)
                    for share in shares:
                        yield model.replace(dp=share.degree, mbs=share.mbs)
                        for fsdp in self.shards(share.degree):
                            for zero in self.stages:
                                yield model.replace(
                                    dp=share.degree // fsdp, fsdp=fsdp, zero=zero, mbs=share.mbs
                                )


def scopes(cluster: Cluster, work: Work, options: Layout, *, narrow: bool = False) -> list[Space]:
    """The space of one device, that of one host, that of several; those that there are."""
    groups: dict[str, list[int]] = {}
    for world in worlds(cluster, narrow):
        groups.setdefault(cluster.scope(world), []).append(world)
    return [Space(cluster, work, tuple(group), options, narrow) for group in groups.values()]


def worlds(cluster: Cluster, narrow: bool = False) -> list[int]:
    """Numbers of ranks: up to 8 every one, then divisors and powers of two; beyond a host whole hosts."""
    devices = cluster.devices
    inside = [
        n for n in range(1, devices + 1) if (n <= 8 and not narrow) or devices % n == 0 or n & (n - 1) == 0
    ]
    hosts = [n for n in range(2, cluster.hosts + 1) if cluster.hosts % n == 0 or n & (n - 1) == 0]
    if narrow:
        inside, hosts = inside[-2:] + inside[:1], hosts[-2:]
    return sorted({*inside, *(n * devices for n in hosts)})


def with_micro_batches(layout: Layout, work: Work) -> Iterator[Layout]:
    """A layout with each micro-batch that its schedule takes."""
    if layout.mbs is not None or layout.world_size == 0:
        yield layout
        return
    for mbs in _rows(layout.data_degree, work.global_batch, narrow=False):
        one = layout.replace(mbs=mbs)
        if one.pp == 1 or takes(one, micro_batches(one, work.global_batch)[1]):
            yield one


@lru_cache(maxsize=1 << 16)
def _model(cut: Cut, depth: Depth, recompute: str, offload: str, compiled: str) -> Layout:
    return Layout(
        tp=cut.tp, cp=cut.cp, cp_kind=cut.cp_kind, ep=cut.ep, etp=cut.etp,
        pp=depth.pp, schedule=depth.schedule, vpp=depth.vpp,
        recompute=recompute, offload=offload, compile=compiled,
    )  # fmt: skip


def _laps(layers: int, pp: int) -> list[int]:
    """Stages of a rank above one: for each number of layers that a stage may hold at most, the fewest that do."""
    found = {ceil(ceil(layers / each) / pp) for each in range(1, layers + 1)}
    return sorted(n for n in found if n > 1 and n * pp <= layers)


@lru_cache(maxsize=4096)
def _shares(
    worlds: tuple[int, ...], taken: int, global_batch: int, mbs: int | None, narrow: bool
) -> tuple[Share, ...]:
    found = []
    for world in worlds:
        degree = world // taken
        if world % taken or degree > global_batch:
            continue
        rows = -(-global_batch // degree)
        for each in (mbs,) if mbs is not None and mbs <= rows else _rows(degree, global_batch, narrow):
            if mbs is None or each == mbs:
                found.append(Share(world, degree, each, -(-global_batch // (degree * each))))
    return tuple(found)


@lru_cache(maxsize=4096)
def _rows(degree: int, global_batch: int, narrow: bool) -> tuple[int, ...]:
    """Micro-batches of a data rank: powers of two and divisors of its rows, each in the shape that it comes to."""
    rows = -(-global_batch // degree)
    sizes = {1 << i for i in range(rows.bit_length())} | set(degrees.divisors(rows))
    if narrow:
        sizes = {n for n in sizes if n in NARROW_ROWS} | {min(rows, NARROW_ROWS[-1])}
    return tuple(sorted({micro_batches(Layout(dp=degree, mbs=n), global_batch)[0] for n in sizes}))


@lru_cache(maxsize=4096)
def _above_one(degree: int) -> tuple[int, ...]:
    return tuple(degrees.divisors(degree)[1:])


def splits_backward(depth: Depth) -> bool:
    """Whether zero3 is refused beside it."""
    return depth.pp > 1 and depth.schedule in SPLIT_BACKWARD

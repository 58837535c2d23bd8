"""The best layouts of a space that is too large to price one by one: branch and bound over columns.

A cut is opened into its depths, a depth into the columns of its shares, always the one whose lower bound of the
objective is least; what is left when that bound is above the last of the best is pruned, and only counted. In a
depth, shares whose bound is too large are dropped before the price, and so are the ways to split one into shards. So
the best found are those that pricing all would find (``tests/plan/test_search_exhaustive.py``).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from paceline.plan.answer import GIB, Kind, Rejection
from paceline.plan.bounds import Bounds
from paceline.plan.census import Census
from paceline.plan.cost.sheaf import Sheaf
from paceline.plan.cost.step import estimate, memory_of
from paceline.plan.decide import memory_limit, over_limits, price
from paceline.plan.enumerate import Cut, Space, splits_backward
from paceline.plan.field import Field
from paceline.plan.layout import Layout
from paceline.plan.money import weight
from paceline.plan.tally import Tally
from paceline.plan.weigh import ROOM, Question, family, fits, is_late, simplicity, unit, weigh

Array = Any
EQUAL = 1 + 1e-12
MANY = 20_000
FEW = 3  # columns so short are priced one by one


@dataclass
class Sifted:
    """The best layouts in order, with their weights; what became of all, also by family; nearest misses of each."""

    best: list[tuple[float, Layout]] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    misses: list[Rejection] = field(default_factory=list)
    census: Census = field(default_factory=Census)


def sift(question: Question, space: Space, keep: int) -> Sifted:
    """The ``keep`` best layouts of a space, as pricing all of them would find.

    ``question.speeds`` answers for columns (:class:`paceline.plan.speed.columns.ColumnSpeeds`).
    """
    limit = np.inf
    if not space.narrow and space.total[0] > MANY:
        # A part of the space first: what its best take, the best of the whole take at most.
        part = replace(space, narrow=True, worlds=space.worlds[-2:])
        known = _Sieve(question, part, keep, limit).run().best
        limit = known[-1][0] * EQUAL if len(known) == keep else limit
    return _Sieve(question, space, keep, limit).run()


@dataclass(frozen=True, eq=False)
class _Node:
    """Points of one depth, with lower bounds of the objective as replicas and, by stage, as shards (infinite: does
    not fit, or is refused); ``plain`` is without what fsdp and dp send.
    """

    cut: Cut
    model: Layout
    at: Field
    plain: Array
    of_whole: Array
    of_shards: Mapping[str, Array]

    @property
    def bound(self) -> Array:
        return np.minimum.reduce([self.of_whole, *self.of_shards.values()])

    def layout(self, point: int) -> Layout:
        return self.model.replace(dp=int(self.at.degree[point]), mbs=int(self.at.mbs[point]))


class _Sieve:
    def __init__(self, question: Question, space: Space, keep: int, limit: float) -> None:
        self.question, self.space, self.keep = question, space, keep
        self.speeds = question.speeds
        self.bounds = Bounds(space, self.speeds)
        # Of a second of a step, at the number of ranks where it is least.
        self.least_weight = min((float(self._weighed(1.0, world)) for world in space.worlds), default=1.0)
        self.limit = limit  # the weight of the last of the best, once there are as many as are kept
        self.found: list[tuple[float, Layout]] = []
        self.weights: list[float] = []  # of the best, negated: the last of them first
        self.over_memory = self.scored = self.unfit = self.late = 0
        self.census = Census(spaces=[space])
        self.misses: dict[tuple[str, str], tuple[float, Rejection]] = {}

    def run(self) -> Sifted:
        for node in self._nodes():
            self._price(node)
        divide, refused = self.space.total
        tally = Tally(
            divide=divide,
            refused=refused,
            over_memory=self.over_memory,
            too_slow=divide - refused - self.over_memory - self.scored,
            scored=self.scored,
            unfit=self.unfit,
            late=self.late,
        )
        return Sifted(self._kept(), tally, [miss for _, miss in self.misses.values()], self.census)

    def _nodes(self) -> Iterator[_Node]:
        """Points of a depth, in order of their bounds, until those are above the limit."""
        tie = count()
        heap: list[tuple[float, int, Cut, str, _Node | None]] = []
        for cut in self.space.cuts if self.bounds.fields.grid else ():
            for recompute in self.space.recomputes:
                least = self.bounds.least_s(cut, recompute) * self.least_weight
                least = 0.0 if self.question.objective == "memory" else least
                heapq.heappush(heap, (least, next(tie), cut, recompute, None))
        while heap and heap[0][0] <= self.limit:
            _, _, cut, recompute, node = heapq.heappop(heap)
            if node is not None:
                yield node
                continue
            for bound, few in self._opened(cut, recompute):
                heapq.heappush(heap, (bound, next(tie), cut, recompute, few))
        for bound, _, _, _, node in heap:
            if node is not None:
                self._miss(node.layout(int(np.argmin(node.bound))), self._kind(), bound, self.limit)

    def _weighed(self, seconds: Array, world: Array) -> Array:
        seconds = seconds * self.question.least_overhead(world)
        cost = self.question.objective == "cost"
        return seconds * weight(self.question.cluster, world) if cost else seconds

    def _opened(self, cut: Cut, recompute: str) -> Iterator[tuple[float, _Node]]:
        """Of each depth the points that may fit and be fast enough, with their bound."""
        at = self.bounds.fields.of(cut)
        least = np.zeros(len(at))
        if self.question.objective != "memory" and len(at):
            least = self.bounds.seconds(at, cut, recompute)
        fast = at.runs & (self._weighed(least, at.world) <= self.limit)
        if not fast.any():
            return
        at, least = at.take(fast), least[fast]
        sizes = self.bounds.sizes(at, cut, recompute, self.space.stages)
        room = self._room(at.world)
        self._too_large(at, cut, recompute, np.minimum.reduce([sizes[0], *sizes[1].values()]), room)
        plain, of_whole, of_shards = self._weights(at, cut, recompute, least, sizes, room)
        bound = np.minimum.reduce([of_whole, *of_shards.values()])
        for index in np.flatnonzero(np.minimum.reduceat(bound, at.firsts) <= self.limit):
            mine = at.of_depth(int(index))
            some = mine.start + np.flatnonzero(np.isfinite(bound[mine]))
            if len(some):
                few = at.take(some)
                model = self.space.model(cut, at.depths[few.depth[0]], recompute)
                shards = {zero: weight[some] for zero, weight in of_shards.items()}
                node = _Node(cut, model, few, plain[some], of_whole[some], shards)
                yield float(node.bound.min()), node

    def _too_large(self, at: Field, cut: Cut, recompute: str, size: Array, room: Array) -> None:
        """Count points that fit in no way, and remember the nearest of them."""
        large = ~fits(size, room)
        if large.any():
            self.over_memory += int((1 + at.splits * (len(self.space.stages) - at.split))[large].sum())
            self._count_large(at, cut, large)
            i = int(np.argmin(np.where(large, size, np.inf)))
            model = self.space.model(cut, at.depths[at.depth[i]], recompute)
            layout = model.replace(dp=int(at.degree[i]), mbs=int(at.mbs[i]))
            self._miss(layout, "memory", float(size[i]) / GIB, float(room[i]) / GIB)

    def _count_large(self, at: Field, cut: Cut, large: Array) -> None:
        """The same by family."""
        depth = at.depth[large]
        several = np.bincount(depth, at.degree[large] > 1).astype(int).tolist()
        ways = np.bincount(depth, at.splits[large]).astype(int).tolist()
        for index, many in enumerate(np.bincount(depth).tolist()):
            if many:
                one, some, more = at.depths[index], several[index], ways[index] - several[index]
                model = self.space.model(cut, one)
                self.census.note(model, "", "over_memory", many - some, some)
                for zero in self.space.stages if more + some else ():
                    if zero != "zero3" or not splits_backward(one):
                        self.census.note(model, f"fsdp:{zero}", "over_memory", some, more)

    def _price(self, node: _Node) -> None:
        """Price what may be among the best, whole replicas first."""
        at = node.at
        live = node.bound <= self.limit
        large = live & np.isinf(node.of_whole)
        self.over_memory += int(large.sum())
        self.census.split(node.model, at.degree[large], at.splits[large], "over_memory")
        stages = [zero for zero in node.of_shards if zero != "zero3" or not at.split[0]]
        for zero in stages:
            large = live & np.isinf(node.of_shards[zero])
            self.over_memory += int(at.splits[large].sum())
            self.census.split(node.model, at.degree[large], at.splits[large], "over_memory", zero)
        whole = node.of_whole <= self.limit
        if whole.any():
            self._score(Sheaf(node.model, at.degree[whole], 1, at.mbs[whole]))
        for zero in stages:
            sheaf = self._sheaf(node, zero)
            if sheaf is not None:
                self._score(sheaf)

    def _sheaf(self, node: _Node, zero: str) -> Sheaf | None:
        """The ways to cut a node's data ranks into shards whose own messages leave it fast enough."""
        at, shards = node.at, np.flatnonzero(node.of_shards[zero] <= self.limit)
        splits = [(i, n) for i in shards for n in self.space.shards(int(at.degree[i]))]
        if not splits:
            return None
        owner, fsdp = np.array(splits).T
        if self.question.objective != "memory" and len(owner) > FEW:
            mine = at.take(owner)
            more = self.bounds.sharded_s(mine, node.cut, node.model.recompute, (zero,), fsdp)[zero]
            quick = self._weighed(node.plain[owner] + more, mine.world) <= self.limit
            owner, fsdp = owner[quick], fsdp[quick]
        if not len(owner):
            return None
        return Sheaf(node.model, at.degree[owner] // fsdp, fsdp, at.mbs[owner], zero, sharded=True)

    def _weights(
        self,
        at: Field,
        cut: Cut,
        recompute: str,
        least: Array,
        sizes: tuple[Array, dict[str, Array]],
        room: Array,
    ) -> tuple[Array, Array, dict[str, Array]]:
        """Lower bounds of each point: seconds without messages of fsdp and dp; the objective as replicas, and as
        shards by stage."""
        bounds, stages = self.bounds, self.space.stages
        whole, shards = sizes
        plain = least
        if self.question.objective == "memory":
            of_whole, of_shards = whole / GIB, {zero: size / GIB for zero, size in shards.items()}
        else:
            of_whole = self._weighed(least + bounds.update_s(at, cut, sharded=False), at.world)
            plain = least + bounds.update_s(at, cut, sharded=True)
            more = bounds.sharded_s(at, cut, recompute, stages)
            of_shards = {zero: self._weighed(plain + seconds, at.world) for zero, seconds in more.items()}
        for zero in stages:
            of_shards[zero] = np.where(fits(shards[zero], room), of_shards[zero], np.inf)
        return plain, np.where(fits(whole, room), of_whole, np.inf), of_shards

    def _score(self, sheaf: Sheaf) -> None:
        work, cluster = self.question.facts.work, self.question.cluster
        self.scored += len(sheaf)
        self._count(sheaf, "scored")
        if len(sheaf) <= FEW:
            for i in range(len(sheaf)):
                self._score_one(sheaf, i)
            return
        memory = memory_of(sheaf, work, self.speeds, cluster)
        room = self._room(sheaf.world_size)
        size = np.broadcast_to(memory[3], len(sheaf))
        fit = fits(size, room)
        self.unfit += int((~fit).sum())
        if not fit.all():
            i = int(np.argmin(np.where(fit, np.inf, size)))
            self._miss(sheaf.layout(i), "memory", float(size[i]) / GIB, float(room[i]) / GIB)
            self._count(sheaf, "unfit", ~fit)
            if not fit.any():
                return
            sheaf, room, size = sheaf.take(fit), room[fit], size[fit]
            memory = ({}, memory[1], memory[2], size)
        found = estimate(sheaf, work, self.speeds, cluster, memory)
        seconds = np.broadcast_to(found.step_s, len(sheaf))
        weight = weigh(self.question, seconds, size, sheaf.world_size, room)
        late = is_late(self.question, found, sheaf.world_size)
        if np.any(late):
            self.late += int(np.sum(late))
            self._count(sheaf, "late", late)
            i = int(np.argmin(np.where(late, seconds, np.inf)))
            self._late(sheaf.layout(i))
            weight = np.where(late, np.inf, weight)
        self._keep(sheaf, weight)

    def _score_one(self, sheaf: Sheaf, i: int) -> None:
        """The same for one layout, which is quicker than a column of few."""
        work, cluster, layout = self.question.facts.work, self.question.cluster, sheaf.layout(i)
        memory, room = memory_of(layout, work, self.speeds, cluster), memory_limit(self.question, layout)
        if not fits(memory[3], room):
            self.unfit += 1
            self.census.add(family(layout), "unfit", 1)
            self._miss(layout, "memory", memory[3] / GIB, room / GIB)
            return
        found = estimate(layout, work, self.speeds, cluster, memory)
        if is_late(self.question, found, layout.world_size):
            self.late += 1
            self.census.add(family(layout), "late", 1)
            self._late(layout)
            return
        weight = weigh(self.question, found.step_s, memory[3], layout.world_size, room)
        self._keep(sheaf.take(np.array([i])), np.array([weight]))

    def _count(self, sheaf: Sheaf, kind: str, which: Array = True) -> None:
        replicated = int(((sheaf.dp > 1) & which).sum())
        alone = (len(sheaf) if which is True else int(which.sum())) - replicated
        self.census.note(sheaf.model, f"fsdp:{sheaf.zero}" if sheaf.sharded else "", kind, alone, replicated)

    def _keep(self, sheaf: Sheaf, weight: Array) -> None:
        best = np.flatnonzero(weight <= self.limit * EQUAL) if self.limit < np.inf else np.arange(len(weight))
        best = best[np.isfinite(weight[best])]
        if len(best) > self.keep:
            last = np.partition(weight[best], self.keep - 1)[self.keep - 1]
            best = best[weight[best] <= last * EQUAL]
        self.found += [(float(weight[i]), sheaf.layout(int(i))) for i in best]
        kept = np.zeros(len(weight), dtype=bool)
        kept[best] = True
        slower = ~kept & np.isfinite(weight)
        if slower.any():
            i = int(np.argmin(np.where(slower, weight, np.inf)))
            self._miss(sheaf.layout(i), self._kind(), float(weight[i]), self.limit)
        for i in best:
            heapq.heappush(self.weights, -float(weight[i]))
            if len(self.weights) > self.keep:
                heapq.heappop(self.weights)
        if len(self.weights) == self.keep:
            self.limit = min(self.limit, -self.weights[0])
        if len(self.found) > 4 * self.keep:
            self.found = self._kept()

    def _kept(self) -> list[tuple[float, Layout]]:
        """Of equals the simplest first."""
        self.found.sort(key=lambda one: (float(f"{one[0]:.10g}"), simplicity(one[1])))
        return self.found[: self.keep]

    def _room(self, world: Array) -> Array:
        cluster = self.space.cluster
        if not cluster.is_cpu:
            return np.full(np.shape(world), float(cluster.memory_bytes))
        return cluster.memory_bytes // np.maximum(1, world)

    def _kind(self) -> Kind:
        return "cost" if self.question.objective == "cost" else "slower"

    def _miss(self, layout: Layout, kind: Kind, value: float, limit: float) -> None:
        """Remember the nearest miss of each family and kind."""
        key = (family(layout), kind)
        if key not in self.misses or value < self.misses[key][0]:
            name = "GiB" if kind == "memory" else unit(self.question)
            self.misses[key] = (value, Rejection(layout, kind, value, limit, name, ""))

    def _tighten(self, late: Rejection) -> None:
        """What takes longer than a late layout's upper end is late too, and is not the nearest: it needs no price.

        With ``1 + ROOM``, the most that fullness adds to a weight, nothing that meets the deadline is pruned.
        """
        steps = self.question.facts.steps
        if late.kind == "deadline" and self.question.objective == "time" and steps:
            self.limit = min(self.limit, late.value * 3600 / steps * (1 + ROOM))

    def _late(self, layout: Layout) -> None:
        late = over_limits(self.question, price(self.question, layout))
        if late is not None:
            self._tighten(late)
            key = (family(layout), late.kind)
            if key not in self.misses or late.value < self.misses[key][0]:
                self.misses[key] = (late.value, replace(late))

"""All depths and shares of a cut's number of ranks, laid out as columns, for bounds over all of them at once.

A point of a field is a depth with a share of the batch. Points of one depth lie together; those of one field have
cuts of as many ranks, so that what depends on the pipeline and the batch alone is worked out once for all such cuts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from paceline.plan.cost import pp
from paceline.plan.cost.held import alike, shares
from paceline.plan.enumerate import Cut, Depth, Space, splits_backward
from paceline.plan.layout import Layout
from paceline.plan.pipeline.counts import takes

Array = Any


@dataclass(frozen=True, eq=False)
class Field:
    """Columns with an entry for each point, and rows for coordinates of the pipeline that hold alike.

    Attributes:
        depth: index into ``depths``. size: of the micro-batch, index into the grid of sizes.
        runs: whether the schedule takes so many micro-batches. split: whether zero3 is refused.
        ends: embedding and head; ``many`` coordinates are alike; ``live`` micro-batches they keep at once.
        counts: layers of a coordinate, by kind. Where a depth has fewer unlike coordinates, the rest are empty.
        waiting: part of the other coordinates' micro-batch that is waited for.
        splits: into how many degrees of fsdp above 1 the data ranks can be cut.
    """

    depths: tuple[Depth, ...]
    depth: Array
    world: Array
    degree: Array
    mbs: Array
    micros: Array
    size: Array
    runs: Array
    split: Array
    splits: Array
    waiting: Array
    pp: Array
    vpp: Array
    counts: Array
    ends: Array
    many: Array
    live: Array

    def __len__(self) -> int:
        return len(self.world)

    def take(self, which: Array) -> Field:
        """The points that a mask picks."""
        flat = ("depth", "world", "degree", "mbs", "micros", "size", "runs", "split", "splits", "waiting")
        found = {name: getattr(self, name)[which] for name in (*flat, "pp", "vpp")}
        found |= {name: getattr(self, name)[:, which] for name in ("many", "live")}
        return replace(self, **found, counts=self.counts[:, :, which], ends=self.ends[:, :, which])

    @cached_property
    def firsts(self) -> Array:
        """Where each depth begins."""
        return np.flatnonzero(np.r_[True, self.depth[1:] != self.depth[:-1]]) if len(self) else self.depth

    def of_depth(self, index: int) -> slice:
        """The points of the depth that begins at ``firsts[index]``."""
        end = self.firsts[index + 1] if index + 1 < len(self.firsts) else len(self)
        return slice(int(self.firsts[index]), int(end))


class Fields:
    """The fields of a space, each made once."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._found: dict[tuple[int, int], Field] = {}

    @cached_property
    def grid(self) -> dict[tuple[int, int], int]:
        """(rows of a micro-batch, world) → index; the world only where ranks share cores."""
        found: dict[tuple[int, int], int] = {}
        taken = {cut.tp * cut.cp * depth.pp for cut in self.space.cuts for depth in self.space.depths}
        for ranks in sorted(taken):
            for share in self.space.shares_of(ranks):
                found.setdefault(self._size(share.mbs, share.world), len(found))
        return found

    def _size(self, mbs: int, world: int) -> tuple[int, int]:
        return mbs, world if self.space.cluster.is_cpu else 0

    def of(self, cut: Cut) -> Field:
        """The points at which a cut is possible."""
        key = (cut.tp * cut.cp, cut.ep * cut.etp)
        if key not in self._found:
            whole = self._whole(cut.tp * cut.cp)
            self._found[key] = whole
            if key[1] > 1:
                self._found[key] = whole.take(whole.world // whole.pp % key[1] == 0)
        return self._found[key]

    def _whole(self, ranks: int) -> Field:
        if (ranks, 1) not in self._found:
            self._found[ranks, 1] = self._made(ranks)
        return self._found[ranks, 1]

    def _made(self, ranks: int) -> Field:
        depths = tuple(depth for depth in self.space.depths if self.space.shares_of(ranks * depth.pp))
        each = [self.space.shares_of(ranks * depth.pp) for depth in depths]
        points = [(i, share) for i, found in enumerate(each) for share in found]
        depth = _column([i for i, _ in points])
        micros = _column([share.micros for _, share in points])
        counts, ends, many, live = self._places(depths, depth, micros)
        models = [self.space.model(Cut(), one) for one in depths]
        of = [micros[depth == i] for i in range(len(depths))]
        runs = [takes(model, several) for model, several in zip(models, of, strict=True)]
        waited = [
            pp.waiting(model, several) + 0.0 * several for model, several in zip(models, of, strict=True)
        ]
        return Field(
            depths=depths,
            depth=depth,
            world=_column([share.world for _, share in points]),
            degree=_column([share.degree for _, share in points]),
            mbs=_column([share.mbs for _, share in points]),
            micros=micros,
            size=_column([self.grid[self._size(share.mbs, share.world)] for _, share in points]),
            runs=np.concatenate(runs) if runs else np.zeros(0, dtype=bool),
            split=np.array([splits_backward(one) for one in depths], dtype=bool)[depth],
            splits=_column([len(self.space.shards(share.degree)) for _, share in points]),
            waiting=np.concatenate(waited) if waited else np.zeros(0),
            pp=_column([one.pp for one in depths])[depth],
            vpp=_column([one.vpp for one in depths])[depth],
            counts=counts,
            ends=ends,
            many=many,
            live=live,
        )

    def _places(
        self, depths: tuple[Depth, ...], depth: Array, micros: Array
    ) -> tuple[Array, Array, Array, Array]:
        work = self.space.work
        found = [
            alike(
                shares(work.widths, work.sequence_length if one.pp > 1 else 1, one.pp, one.vpp, one.schedule)
            )
            for one in depths
        ]
        rows = max((len(places) for places in found), default=1)
        kinds = len(found[0][0][0].counts) if found else 1
        counts = np.zeros((rows, kinds, len(depths)))
        ends = np.zeros((rows, 2, len(depths)))
        many = np.zeros((rows, len(depths)))
        live = np.zeros((rows, len(micros)))
        for i, places in enumerate(found):
            mine = depth == i
            model: Layout = self.space.model(Cut(), depths[i])
            for row, (share, alike_them, first) in enumerate(places):
                counts[row, :, i] = share.counts
                ends[row, :, i] = share.embeds, share.predicts
                many[row, i] = alike_them
                live[row, mine] = pp.in_flight(model, first, micros[mine])
        return counts[:, :, depth], ends[:, :, depth], many[:, depth], live


def _column(values: list[int]) -> Array:
    return np.array(values, dtype=np.int64)

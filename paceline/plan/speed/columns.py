"""Speeds for columns: each distinct question is asked of the machine once, and the answer is laid out again.

A machine's speeds come from measurements and tables, so they are asked number by number; of a million layouts the
distinct sizes are few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

from paceline.plan.columns import Column, is_column
from paceline.plan.model import Widths
from paceline.plan.speed.speeds import Group, Speeds


class ColumnSpeeds:
    """The speeds of a machine, of numbers and of columns.

    ``shared``: whether ranks share a host's cores, so that a rank's speed depends on how many there are.
    """

    def __init__(self, speeds: Speeds, *, shared: bool) -> None:
        self.one = speeds
        self.precision = speeds.precision
        self.factors = speeds.factors
        self.overlaps = speeds.overlaps
        self.base_bytes = speeds.base_bytes
        self.sigma: Mapping[str, float] = speeds.sigma
        self.assumed = speeds.assumed
        self._shared = shared
        self.pods = speeds.pods
        self._widths: dict[int, Widths] = {}
        self._known: dict[tuple[Any, ...], dict[Any, float]] = {}

    def peak_flops(self, world: int) -> float:
        return float(self._each(("peak",), self.one.peak_flops, world))

    def block_s(self, kind: Widths, sequence_length: int, mbs: Column, world: Column, tp: int = 1) -> Column:
        return self._each(
            ("block", self._name(kind), sequence_length, tp),
            lambda m, w: self.one.block_s(kind, sequence_length, m, w, tp),
            mbs,
            self._ranks(world),
        )

    def outer_s(self, widths: Widths, sequence_length: int, mbs: Column, world: Column) -> Column:
        return self._each(
            ("outer", self._name(widths), sequence_length),
            lambda m, w: self.one.outer_s(widths, sequence_length, m, w),
            mbs,
            self._ranks(world),
        )

    def optimizer_s(self, parameters: Column, world: Column) -> Column:
        return self._each(("optimizer",), self.one.optimizer_s, parameters, self._ranks(world))

    def copy_s(self, size_bytes: Column, world: Column) -> Column:
        return self._each(("copy",), self.one.copy_s, size_bytes, self._ranks(world))

    def collective_s(self, op: str, size_bytes: Column, group: Group) -> Column:
        return self._each(
            ("collective", op),
            lambda size, ranks, on_host, apart: self.one.collective_s(
                op, size, Group(int(ranks), int(on_host), int(apart))
            ),
            size_bytes,
            group.ranks,
            group.on_host,
            group.apart if self.pods else 1,
        )

    def distance(self, widths: Widths, sequence_length: int, mbs: float) -> float:
        ask = getattr(self.one, "distance", None)
        if ask is None:
            return float("inf")
        name = ("distance", self._name(widths), sequence_length)
        return float(self._each(name, lambda m: ask(widths, sequence_length, m), mbs))

    def _name(self, widths: Widths) -> int:
        """Widths are many fields to compare: one object is known by its place, and kept so that it stays there."""
        self._widths[id(widths)] = widths
        return id(widths)

    def _ranks(self, world: Column) -> Column:
        return world if self._shared else 1

    def _each(self, name: tuple[Any, ...], ask: Callable[..., float], *questions: Column) -> Column:
        known = self._known.setdefault(name, {})
        if not any(map(is_column, questions)):
            return _known(known, ask, questions)
        return _laid_out(known, ask, questions)


SHORT = 100
"""Up to here looking each one up is quicker than finding the distinct ones."""


def _laid_out(known: dict[Any, float], ask: Callable[..., float], questions: tuple[Column, ...]) -> Column:
    import numpy as np

    columns = [q for q in questions if is_column(q)]
    if len(columns[0]) <= SHORT:
        each = [q.tolist() if is_column(q) else repeat(q) for q in questions]
        return np.array([_known(known, ask, row) for row in zip(*each, strict=False)])
    place: Any = 0
    for column in columns:
        distinct, index = np.unique(column, return_inverse=True)
        place = place * len(distinct) + index
    if len(columns) > 1:
        _, first, place = np.unique(place, return_index=True, return_inverse=True)
    else:
        first = np.unique(place, return_index=True)[1]
    rows = zip(*(q[first].tolist() if is_column(q) else [q] * len(first) for q in questions), strict=True)
    return np.array([_known(known, ask, row) for row in rows])[place]


def _known(known: dict[Any, float], ask: Callable[..., float], row: Any) -> float:
    found = known.get(row)
    if found is None:
        found = known[row] = ask(*row)
    return found

"""Which row comes at which position: a stateless permutation, so that the loader's state is one integer.

Within an epoch the rows are permuted by a Feistel network over Z_a x Z_a with a = ceil(sqrt(rows)), and
values outside the rows are walked along their cycle (Black and Rogaway 2002, "Ciphers with arbitrary
finite domains"). The round function is splitmix64 of (seed, group, epoch, round). Nothing is stored and
nothing depends on the world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import Any

import numpy as np

from paceline.compute.data.hashing import mix_all, mix_array
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many

_ROUNDS = 8
_SCHEDULE_SLOTS = 1 << 16
"""Positions after which the quotas of weighted groups repeat; a weight is exact to 1 / 2**17."""
_TAG_ROUND, _TAG_SLOT = 1, 2


@dataclass(frozen=True)
class Group:
    """A named source's rows: ``first_row .. first_row + rows`` of the packed set, drawn with this weight."""

    name: str
    first_row: int
    rows: int
    weight: float = 1.0


def permute(index: np.ndarray, rows: int, *key: int) -> np.ndarray:
    """Where each ``index`` in [0, rows) goes: a bijection of [0, rows) chosen by ``key``.

    Args:
        index: int64[n], each in [0, rows).
        rows: the size of the domain.
        key: any integers, for instance (seed, epoch).

    Returns:
        int64[n].
    """
    side = isqrt(rows - 1) + 1
    keys = [np.uint64(mix_all(_TAG_ROUND, round_, *key)) for round_ in range(_ROUNDS)]
    value = _feistel(index.astype(np.uint64), side, keys)
    outside = np.flatnonzero(value >= rows)
    while outside.size:
        value[outside] = _feistel(value[outside], side, keys)
        outside = outside[value[outside] >= rows]
    return value.astype(np.int64)


def _feistel(value: np.ndarray, side: int, keys: Sequence[np.uint64]) -> np.ndarray:
    a = np.uint64(side)
    left: Any = value // a
    right: Any = value % a
    for key in keys:
        left, right = right, (left + mix_array(right ^ key) % a) % a
    return np.asarray(left * a + right)


class Order:
    """The order of rows, for ever: epoch after epoch, each row once per epoch, another order in each.

    With ``groups``, every window of 65 536 positions holds each group's exact quota (weights to 1 / 2**17),
    at places chosen by hash, and each group walks through its own epochs in its own order; "one epoch" of the
    whole then is ``rows`` positions.

    Args:
        seed: ``train.seed``.
        rows: rows of the packed set.
        groups: weighted named sources; ``None`` for one plain set.
    """

    def __init__(self, seed: int, rows: int, groups: Sequence[Group] | None = None) -> None:
        if rows < 1:
            raise Refused(
                "there is no row to order",
                exit_code=Exit.DATA,
                key="data.train",
                seen=f"{many(rows, 'row')}",
                rule="an epoch has at least one row",
                use="more data, or a smaller data.sequence_length",
            )
        self.seed, self.rows = int(seed), int(rows)
        self.groups = tuple(groups) if groups else ()
        self._slots = _schedule(self.seed, self.groups) if self.groups else None

    def row_at(self, position: int) -> int:
        """The row at one global position (0, 1, 2 … without end)."""
        return int(self.rows_at(np.asarray([position]))[0])

    def epoch_at(self, position: int) -> int:
        """The number of whole epochs before this position."""
        return position // self.rows

    def rows_at(self, positions: np.ndarray) -> np.ndarray:
        """The rows at many positions at once: int64[n] to int64[n]."""
        positions = np.asarray(positions, dtype=np.int64)
        if self._slots is None:
            return self._permuted(positions, self.rows, group=0)
        group_of_slot, draw_of_slot, quotas = self._slots
        block, slot = positions // _SCHEDULE_SLOTS, positions % _SCHEDULE_SLOTS
        which = group_of_slot[slot]
        draws = block * quotas[which] + draw_of_slot[slot]
        rows = np.empty(positions.size, np.int64)
        for number, group in enumerate(self.groups):
            mine = which == number
            if mine.any():
                rows[mine] = group.first_row + self._permuted(draws[mine], group.rows, group=number + 1)
        return rows

    def _permuted(self, draws: np.ndarray, rows: int, group: int) -> np.ndarray:
        epochs, index = draws // rows, draws % rows
        found = np.empty(draws.size, np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            found[here] = permute(index[here], rows, self.seed, group, int(epoch))
        return found


@lru_cache(maxsize=8)
def _schedule(seed: int, groups: tuple[Group, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each slot of a window its group and its number among that group's slots; and each group's quota."""
    quotas = _quotas([group.weight for group in groups])
    sorted_groups = np.repeat(np.arange(len(groups)), quotas)
    group_of_slot = sorted_groups[permute(np.arange(_SCHEDULE_SLOTS), _SCHEDULE_SLOTS, _TAG_SLOT, seed)]
    draw_of_slot = np.empty(_SCHEDULE_SLOTS, np.int64)
    for number in range(len(groups)):
        mine = np.flatnonzero(group_of_slot == number)
        draw_of_slot[mine] = np.arange(mine.size)
    return group_of_slot, draw_of_slot, np.asarray(quotas, np.int64)


def _quotas(weights: Sequence[float]) -> list[int]:
    """The slots of a window shared out by largest remainder; each group gets at least one."""
    total = sum(weights)
    exact = [weight / total * _SCHEDULE_SLOTS for weight in weights]
    quotas = [max(1, int(share)) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda i: (int(exact[i]) - exact[i], i))
    for i in by_remainder:
        if sum(quotas) >= _SCHEDULE_SLOTS:
            break
        quotas[i] += 1
    while sum(quotas) != _SCHEDULE_SLOTS:
        quotas[quotas.index(max(quotas))] += 1 if sum(quotas) < _SCHEDULE_SLOTS else -1
    return quotas

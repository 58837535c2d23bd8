"""A packed set in which some rows stand in for others and some ids are replaced: the data of a proof.

A proof looks at a few rows of a job. What goes wrong between ranks may need a token or a document border that these do
not have; a touch puts it there, and is the same on one device and on every layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from paceline.compute.data.batches import Rows
from paceline.compute.data.packing import IGNORE, Row


@dataclass(frozen=True)
class Touch:
    """What is changed, as plain values.

    Attributes:
        rows: (row, row that is read in its place).
        ids: (row, column, id): what the token there is, and so the target before it.
    """

    rows: tuple[tuple[int, int], ...] = ()
    ids: tuple[tuple[int, int, int], ...] = ()

    def to_dict(self) -> dict[str, list[list[int]]]:
        """For JSON."""
        return {"rows": [list(each) for each in self.rows], "ids": [list(each) for each in self.ids]}

    @classmethod
    def read(cls, values: Mapping[str, Iterable[Iterable[int]]]) -> Touch:
        """From JSON; an empty mapping touches nothing."""
        rows = tuple((row, other) for row, other in values.get("rows", ()))
        return cls(rows, tuple((row, column, token) for row, column, token in values.get("ids", ())))


@dataclass(frozen=True)
class TouchedSet:
    """The rows of ``base`` with a touch; as many, under the same numbers."""

    base: Rows
    touch: Touch

    @property
    def rows(self) -> int:
        return self.base.rows

    @property
    def sequence_length(self) -> int:
        return self.base.sequence_length

    @property
    def packing(self) -> str:
        return self.base.packing

    @cached_property
    def _instead(self) -> dict[int, int]:
        return dict(self.touch.rows)

    @cached_property
    def _ids(self) -> dict[int, list[tuple[int, int]]]:
        found: dict[int, list[tuple[int, int]]] = {}
        for row, column, token in self.touch.ids:
            found.setdefault(row, []).append((column, token))
        return found

    def row(self, row: int) -> Row:
        """Row ``row`` as a proof sees it; a target that does not count still does not."""
        found = self.base.row(self._instead.get(row, row))
        if row not in self._ids:
            return found
        tokens, targets = found.tokens.copy(), found.targets.copy()
        for column, token in self._ids[row]:
            tokens[column] = token
            if column and targets[column - 1] != IGNORE:
                targets[column - 1] = token
        return replace(found, tokens=tokens, targets=targets)

    def valid_tokens(self, rows: np.ndarray) -> np.ndarray:
        """int64[n]: how many targets count in each row; ids do not change it."""
        return self.base.valid_tokens(np.asarray([self._instead.get(row, row) for row in rows.tolist()]))

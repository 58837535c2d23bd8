"""A few numbers of each rank, in memory that all of them and the launcher see: which step each has finished.

*Why a change of the weights is entered together.* A process can die at any instant. Were one rank changing its
weights while another had not yet heard the norm of the gradients, a death between the two would leave no step that
all shards can be brought to. So a rank says that its gradients are complete (``ready``) and begins to change weights
only when all ranks have said so. From then on every rank that lives can finish the step without any message; before
it, no weight of that step has changed anywhere.

Nothing here is locked: each rank writes its own row, 8 aligned bytes at a time, and rows of two steps lie beside each
other, so that the older one is whole while the newer one is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields

import numpy as np

from paceline.recover.buffer import Buffer
from paceline.update.controls import REMEMBERED

SPINS = 200
PAUSE_S = 50e-6
"""A rank looks SPINS times at once, then so often: with more ranks than cores the others need the core."""


@dataclass(frozen=True)
class Finished:
    """A finished step, as every rank knows it: for the run's scalars, and for a row that nobody had written yet.

    ``position`` counts the rows of data used, ``tokens`` and ``samples`` are totals of the run, the others are of this
    step; ``wall_s`` is the time since the step before had finished, on this rank. ``remembered`` is what the rules that
    watch the run remember after it.
    """

    step: int
    position: float
    tokens: float
    samples: float
    valid_tokens: float
    target_bytes: float
    rows: float
    loss: float
    grad_norm: float
    rate: float
    wall_s: float
    remembered: tuple[float, ...]


_READY, _DONE = 0, 1
_NAMES = [field.name for field in fields(Finished)]
_NUMBERS = len(_NAMES) - 1
_KEPT = _NUMBERS + REMEMBERED
WORDS = 2 + 2 * _KEPT
"""float64 numbers of a rank: ready, done, and two finished steps; a step is exact to 2^53."""


class Words:
    """The rows of all ranks.

    Args:
        buffer: shared, with room for them (:meth:`make`).
        ranks: how many rows.
    """

    def __init__(self, buffer: Buffer, ranks: int) -> None:
        self.buffer = buffer
        self._rows = buffer.bytes(0, ranks * WORDS * 8).view(np.float64).reshape(ranks, WORDS)

    @classmethod
    def make(cls, ranks: int) -> Words:
        """Rows in new memory: no rank holds anything. Raises OSError."""
        buffer = Buffer()
        buffer.reserve(ranks * WORDS * 8)
        words = cls(buffer, ranks)
        words.forget()
        return words

    def forget(self) -> None:
        """No rank holds anything."""
        self._rows[:] = -1.0

    @property
    def ready(self) -> np.ndarray:
        """By rank: the newest step whose gradients were complete there."""
        return self._rows[:, _READY]

    @property
    def done(self) -> np.ndarray:
        """By rank: the newest step that was finished there."""
        return self._rows[:, _DONE]

    def begin(self, rank: int, step: int) -> None:
        """This rank holds the state after ``step`` finished steps."""
        self._rows[rank, _DONE] = step
        self._rows[rank, _READY] = step

    def enter(self, rank: int, step: int, limit_s: float, alive: Callable[[], None] = lambda: None) -> None:
        """Say that this rank can finish ``step``, and wait until all can.

        Raises:
            TimeoutError: not all said so in ``limit_s``; no weight has changed anywhere.
        """
        self._rows[rank, _READY] = step
        began = time.monotonic()
        for _ in range(SPINS):
            if self.ready.min() >= step:
                return
        while self.ready.min() < step:
            time.sleep(PAUSE_S)
            if time.monotonic() - began > limit_s:
                late = [int(r) for r in np.flatnonzero(self.ready < step)]
                raise TimeoutError(f"ranks {late} had no gradients of step {step} after {limit_s:.0f} s")

    def leave(self, rank: int, finished: Finished) -> None:
        """The step is finished on this rank; last of all is said that it is."""
        row = self._rows[rank]
        start = 2 + _KEPT * (finished.step % 2)
        row[start] = -1.0  # of no step while it is written
        *numbers, remembered = astuple(finished)
        row[start + 1 : start + _KEPT] = (*numbers[1:], *remembered)
        row[start] = finished.step
        row[_DONE] = finished.step

    def finished(self, rank: int) -> list[Finished]:
        """The last two steps that this rank finished and wrote down, oldest first."""
        found = []
        for start in (2, 2 + _KEPT):
            step, *rest = self._rows[rank, start : start + _KEPT].tolist()
            if step > 0:
                values = (int(step), *rest[: _NUMBERS - 1], tuple(rest[_NUMBERS - 1 :]))
                found.append(Finished(**dict(zip(_NAMES, values, strict=True))))
        return sorted(found, key=lambda one: one.step)

"""The launcher's side of the memory that outlives the ranks: made before the first start, read after a death."""

from __future__ import annotations

import time
from collections.abc import Mapping

from paceline.launch.freeze import freeze, has_ended, thaw
from paceline.recover.buffer import Buffer
from paceline.recover.live.alive import Alive
from paceline.recover.live.arena import Arena, can_share, path_of
from paceline.recover.live.survive import Survived, in_update, survived
from paceline.recover.live.words import Words

FINISH_S = 30.0
"""So long may the living ranks take to finish a change of the weights that has begun."""
LOOK_S = 0.002


class Survivors:
    """Memory for the states of ``ranks`` ranks. It has no name: with this process it is gone."""

    def __init__(self, ranks: int) -> None:
        self._found: Survived | None = None
        self._before: list[Buffer] = []  # of the attempt before, when it had another number of ranks
        self._make(ranks)

    def _make(self, ranks: int) -> None:
        self._words = Words.make(ranks)
        self._buffers = [Buffer() for _ in range(ranks)]

    @classmethod
    def of(cls, ranks: int) -> Survivors | None:
        """None where this system has no such memory."""
        try:
            return cls(ranks) if can_share() else None
        except OSError:
            return None

    def settle(self, pids: Mapping[int, int]) -> None:
        """Before the living ranks (number → process) are ended: let them finish what they have begun, then look.

        They stand still while it is read whether weights are changing: what is read would not be true a moment later.
        """
        freeze(pids.values())
        step = in_update(self._words)
        if step is not None:
            thaw(pids.values())
            until = time.monotonic() + FINISH_S
            while time.monotonic() < until and self._still_at(step, pids):
                time.sleep(LOOK_S)
            freeze(pids.values())
        self._found = survived(self._words, [Arena(buffer) for buffer in self._buffers])

    def _still_at(self, step: int, pids: Mapping[int, int]) -> bool:
        return any(self._words.done[rank] < step and not has_ended(pid) for rank, pid in pids.items())

    def alive(self, attempt: int, newest: int | None, ranks: int = 0) -> Alive:
        """For the next attempt: what is there, or nothing where a checkpoint of step ``newest`` is newer.

        Args:
            attempt: the one that has ended.
            ranks: of the next one, where it has another number.

        Raises:
            OSError: the system has no room for the rows of other ranks.
        """
        found, self._found = self._found, None
        there = [path_of(buffer) for buffer in self._buffers]
        if ranks not in (0, len(self._buffers)):
            self._forget_before()
            self._before = [self._words.buffer, *self._buffers]
            self._make(ranks)
        words, arenas = path_of(self._words.buffer), tuple(path_of(buffer) for buffer in self._buffers)
        if found is None or not found.finished or found.step < max(1, newest or 0):
            self._words.forget()
            return Alive(words, arenas)
        sources = tuple(there[rank] for rank in found.clean)
        return Alive(words, arenas, found.step, sources, found.finished, attempt, newest or 0)

    def afresh(self) -> Alive:
        """For an attempt that does not go on from memory."""
        self._found = None
        self._words.forget()
        return Alive(path_of(self._words.buffer), tuple(path_of(buffer) for buffer in self._buffers))

    def close(self) -> None:
        """Give the memory back."""
        self._forget_before()
        for buffer in (self._words.buffer, *self._buffers):
            buffer.close()

    def _forget_before(self) -> None:
        for buffer in self._before:
            buffer.close()
        self._before = []

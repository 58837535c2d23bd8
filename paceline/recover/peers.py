"""The writers of a save meet in a folder: each leaves a small file when its part of a round is done.

The processes that write have no group of their own, and may sit on several hosts; what they all see is the store
that they write to. A writer that fails leaves no file: it tells its own rank, and that rank ends the run, and with
it the writers that wait. So nobody waits for ever and no failure has to pass through a disk that may be full.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
SOONEST_S, LATEST_S = 0.002, 0.02


class Peers:
    """One rank's writer among those of a save. Alone it touches no file.

    Args:
        meet: the folder of this one save: its name holds the attempt and a number that no earlier save had.
        waiting: called while others are waited for; what it raises ends the wait.
        first_s: how long rank 0 may take to open the save, before its store is taken for another.
    """

    def __init__(
        self, meet: Path, rank: int, size: int, waiting: Callable[[], None], first_s: float = 60.0
    ) -> None:
        self.meet, self.rank, self.size = meet, rank, size
        self._waiting, self._first_s, self._round, self._alone = waiting, first_s, 0, 0

    def together(self, part: Callable[[], T], *, on: int | None = None) -> T | None:
        """Run this rank's part (of rank ``on`` only, if given) and wait for the others'.

        Raises:
            What this rank's own part raises. Another rank's failure is told to nobody here.
        """
        mine = on is None or on == self.rank
        result = part() if mine else None
        self._arrive(0, told=mine)
        self._await([on] if on is not None else range(self.size))
        return result

    def total(self, value: int) -> int:
        """The sum of every rank's number."""
        self._arrive(value, told=True)
        return sum(self._await(range(self.size)))

    def leave(self) -> None:
        """After the last round; rank 0 waits for all, and removes the folder."""
        if self.size == 1:
            return
        self._arrive(0, told=True)
        if self.rank == 0:
            self._await(range(self.size))
            shutil.rmtree(self.meet, ignore_errors=True)

    def _arrive(self, value: int, *, told: bool) -> None:
        self._round += 1
        if self.size == 1:
            self._alone = value
        elif told:
            self.meet.mkdir(exist_ok=True)
            whole, torn = self._file(self.rank), self.meet / f".{self._round}-{self.rank}"
            torn.write_text(str(value), encoding="ascii")
            os.rename(torn, whole)  # a file that is there holds its number

    def _await(self, ranks: Iterable[int]) -> list[int]:
        if self.size == 1:
            return [self._alone]
        return [self._read(rank) for rank in ranks]

    def _read(self, rank: int) -> int:
        pause_s, began = SOONEST_S, time.monotonic()
        while True:
            try:
                return int(self._file(rank).read_text(encoding="ascii"))
            except FileNotFoundError:
                if self._round == 1 and time.monotonic() - began > self._first_s:
                    raise
                self._waiting()
            time.sleep(pause_s)
            pause_s = min(LATEST_S, 1.5 * pause_s)

    def _file(self, rank: int) -> Path:
        return self.meet / f"{self._round}-{rank}"

"""Every rank and all that writes for them, killed at once, again and again: `latest` is whole, the bits are the same.

Memory that outlives ranks is switched off: this is about what is on the disk.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import paceline as pl
from paceline.recover.checkpoint import latest, verify
from tests.drills.small import EVERY, assert_same_bits, attempts_of, children_of, events, write_tiny

Record = Callable[[str, object], None]


class Killer:
    """Strikes ``times``, each in an attempt of its own; every other time while a save is being written."""

    def __init__(self, run: Path, times: int, seed: int) -> None:
        self.run, self.times, self.chance = run, times, random.Random(seed)
        self.in_save: list[bool] = []
        self.unreadable: list[str] = []
        self.ended = False

    def watch(self) -> None:
        for attempt in range(self.times):
            if not self._wait(lambda attempt=attempt: self._newest() == attempt and self._trains()):
                return
            if attempt % 2:
                self._wait(self._saving)
                time.sleep(self.chance.random() * 0.02)
            else:
                time.sleep(self.chance.random() * 0.3)
            self._strike()

    def _strike(self) -> None:
        self.in_save.append(self._saving())
        ranks = self._pids()
        below = [pid for rank in ranks for pid in children_of(rank)]
        for pid in (*ranks, *below):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            newest = latest(self.run / "checkpoints")
            if newest is not None and verify(newest):
                self.unreadable.append(newest.name)
        except Exception as error:
            self.unreadable.append(str(error))

    def _wait(self, there: Callable[[], bool]) -> bool:
        until = time.monotonic() + 30
        while not there():
            if self.ended or time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True

    def _headers(self) -> list[dict[str, int]]:
        found = []
        for path in sorted((self.run / "ledger").glob("rank-*.jsonl")):
            lines = [json.loads(t) for t in path.read_text().splitlines() if '"kind":"ledger"' in t]
            found.append(lines[-1] if lines else {"attempt": -1, "pid": 0})
        return found

    def _newest(self) -> int:
        headers = self._headers()
        return min(row["attempt"] for row in headers) if len(headers) == 2 else -1

    def _trains(self) -> bool:
        return bool(attempts_of(self.run).get(self._newest()))

    def _pids(self) -> list[int]:
        return [int(row["pid"]) for row in self._headers()]

    def _saving(self) -> bool:
        return any((self.run / "checkpoints").glob(".*tmp*"))


@pytest.mark.drill(1, 19)
@pytest.mark.parametrize(
    ("times", "seed"), [(4, 0), *(pytest.param(10, n, marks=pytest.mark.soak) for n in range(1, 21))]
)
def test_all_killed_again_and_again(
    times: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    steps = 40 + 10 * times
    monkeypatch.setattr("paceline.recover.live.arena.sys.platform", "darwin")
    job = write_tiny(tmp_path, train__steps=str(steps), restart__max="100")
    straight = pl.train(job, layout="dp=2", name="straight")
    killer = Killer(tmp_path / "runs" / "struck", times, seed)
    thread = threading.Thread(target=killer.watch, daemon=True)
    thread.start()
    run = pl.train(job, layout="dp=2", name="struck")
    killer.ended = True
    thread.join(10)

    restarts = events(run, "restart")
    assert len(restarts) == times, "every kill must have struck"
    assert sum(killer.in_save) >= times // 3
    assert killer.unreadable == []
    assert_same_bits(run, straight, steps)
    by_attempt, lost = attempts_of(run.path), []
    for number, restart in enumerate(restarts):
        last = max(step for step, _ in by_attempt[number])
        lost.append(last - restart["step"])
        begun = last // EVERY * EVERY
        assert restart["step"] >= begun - EVERY, "more than the save that was being written is lost"
    record_property("steps_lost", max(lost))
    print(f"{times} kills, {sum(killer.in_save)} in a save; steps lost: {sorted(lost)}")

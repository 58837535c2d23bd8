"""The launcher's watch over its ranks: results, deaths, hangs, and the order to stop.

One loop, no threads. It sleeps on the ranks' pipes and on their sentinels, so a message or a death wakes it
at once; every tick it also asks whether to stop, and looks at the slots in which the ranks write their last
collective.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from paceline.deliver.wire.slot import read_slots
from paceline.launch.cause import Cause, first_cause, from_death, from_early_end, from_hang
from paceline.launch.seat import STACK_SIGNAL
from paceline.launch.signals import Stop
from paceline.ledger.outcome import Exit, Preempted, from_dict

TICK_S = 0.1
GRACE_S = 0.3  # between the first failure and the end of the others: whoever knows more speaks in this time
DOUBT_S = 2.0  # as long as all that is known is a lost peer, which is never the first cause
LEAVE_S = 15.0  # a rank that has returned its result may take this long to end
STACKS_S = 0.3

OnMessage = Callable[[int, dict[str, Any]], None]


class Rank(Protocol):
    """A started rank process, the launcher's end of its pipe, and its log."""

    process: BaseProcess
    pipe: Connection
    log: Path


@dataclass
class Watch:
    """Supervises ``ranks`` until each has a result, or one has failed.

    Args:
        ranks: by rank.
        host: for messages.
        slots: the file of last calls.
        hang_timeout_s: how long all ranks together may stand still.
        on_message: gets each row of each rank.
        stop: the reason to stop, or ``None``; passed on to the ranks once.

    ``died`` has the ranks that ended without a word.
    """

    ranks: Sequence[Rank]
    host: str
    slots: Path
    hang_timeout_s: float
    on_message: OnMessage
    stop: Stop
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    preempted: dict[int, Cause] = field(default_factory=dict)
    causes: list[Cause] = field(default_factory=list)
    died: set[int] = field(default_factory=set)
    _told_to_stop: bool = False
    _warned: set[str] = field(default_factory=set)
    _seen: list[tuple[int, bool]] = field(default_factory=list)
    _next_look_s: float = 0.0
    _moved_s: float = field(default_factory=time.monotonic)

    def run(self) -> list[dict[str, Any]]:
        """Results by rank.

        Raises:
            PacelineError: the first cause; :class:`Preempted` when every rank ended so.
        """
        pipes = {rank.pipe: number for number, rank in enumerate(self.ranks)}
        alive = {rank.process.sentinel: number for number, rank in enumerate(self.ranks)}
        give_up: float | None = None
        failed_s: float | None = None
        while alive and (give_up is None or time.monotonic() < give_up):
            for ready in wait([*pipes, *alive], TICK_S):
                if ready in pipes:
                    self._read(ready, pipes)
                elif ready in alive:
                    self._ended(alive.pop(ready), pipes)
            self._pass_on_stop()
            self._look_for_hang()
            if self.causes:
                failed_s = failed_s or time.monotonic()
                give_up = failed_s + (DOUBT_S if all(c.is_echo for c in self.causes) else GRACE_S)
            elif give_up is None and len(self.results) + len(self.preempted) == len(self.ranks):
                give_up = time.monotonic() + LEAVE_S
        if self.causes:
            raise self._cause().error
        if self.preempted:
            raise self.preempted[min(self.preempted)].error
        return [self.results[number] for number in range(len(self.ranks))]

    def _read(self, pipe: Connection, pipes: dict[Connection, int]) -> None:
        """Everything that the rank has sent; a pipe that is closed is forgotten."""
        rank = pipes[pipe]
        try:
            while pipe.poll(0):
                self._heard(rank, json.loads(pipe.recv_bytes()))
        except (EOFError, OSError):
            pipes.pop(pipe, None)

    def _heard(self, rank: int, row: dict[str, Any]) -> None:
        self._moved_s = time.monotonic()
        kind = row.get("kind")
        if kind == "result":
            self.results[rank] = row["value"]
        elif kind == "error":
            cause = Cause(rank, from_dict(row["error"]))
            if isinstance(cause.error, Preempted):
                self.preempted[rank] = cause  # the others may still be saving: nobody is ended for it
            else:
                self.causes.append(cause)
        elif kind == "warn":
            if row["text"] not in self._warned:
                self._warned.add(row["text"])
                self.on_message(rank, {**row, "text": f"{row['host']}:{rank}| {row['text']}"})
        else:
            self.on_message(rank, row)

    def _ended(self, rank: int, pipes: dict[Connection, int]) -> None:
        member = self.ranks[rank]
        if member.pipe in pipes:
            self._read(member.pipe, pipes)
        known = rank in self.results or rank in self.preempted or any(c.rank == rank for c in self.causes)
        if not known:
            member.process.join(1)
            self.died.add(rank)
            last = read_slots(self.slots, len(self.ranks))[rank]
            told = from_death(rank, self.host, member.process.exitcode, member.log, last.call)
            self.causes.append(Cause(rank, told, died=True))

    def _pass_on_stop(self) -> None:
        if self._told_to_stop:
            return
        reason = self.stop()
        if reason is None:
            return
        self._told_to_stop = True
        self._moved_s = time.monotonic()
        for member in self.ranks:
            try:
                member.pipe.send_bytes(json.dumps({"stop": reason}).encode())
            except OSError:
                pass  # it has ended, and its sentinel will say how

    def _look_for_hang(self) -> None:
        now = time.monotonic()
        if self.causes or now < self._next_look_s:
            return
        self._next_look_s = now + min(1.0, self.hang_timeout_s / 20)
        calls = read_slots(self.slots, len(self.ranks))
        seen = [(call.version, call.inside) for call in calls]
        if seen != self._seen:
            self._seen, self._moved_s = seen, now
        elif now - self._moved_s >= self.hang_timeout_s:
            self._ask_for_stacks()
            self.causes.append(Cause(-1, from_hang(calls, now - self._moved_s, self.hang_timeout_s)))

    def _ask_for_stacks(self) -> None:
        for member in self.ranks:
            if member.process.is_alive() and member.process.pid:
                os.kill(member.process.pid, STACK_SIGNAL)
        time.sleep(STACKS_S)

    def _cause(self) -> Cause:
        cause = first_cause(self.causes)
        if cause.error.exit_code == Exit.RANK_DIED and not cause.died and self.results:
            # A peer is lost, and none has died: those that are lost have returned.
            calls = read_slots(self.slots, len(self.ranks))
            return Cause(cause.rank, from_early_end(sorted(self.results), calls, cause.error))
        if cause.error.exit_code != Exit.HUNG or cause.rank < 0:
            return cause
        # A rank's own time-out knows the collective but not who is late; the slots know both.
        calls = read_slots(self.slots, len(self.ranks))
        told = from_hang(calls, time.monotonic() - min(c.time_s for c in calls), self.hang_timeout_s)
        cause.error.seen = f"{cause.error.seen}\n{told.message}\n{told.seen}"
        return cause

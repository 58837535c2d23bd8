"""Every second of a rank goes to exactly one account: the timer, and its append-only file.

The timer is a stack. Entering an account pauses the one below it, leaving resumes it, so a second is booked
once however the spans nest. What no span covers is *unattributed*, and never a remainder of something else.

Times are kept in ticks of 100 ns. All boundaries are rounded in the same way and a duration is the difference
of two of them, so the spans of a line and its unattributed time sum to its wall time exactly.

Inside a step nothing is encoded or written: tuples are appended to a list. :meth:`Ledger.close_step` writes
one line, and books its own time to ``("idle", "ledger")`` of the next.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

PHASES = ("plan", "compute", "deliver", "update", "recover", "idle")
PHASE_INDEX = {phase: i for i, phase in enumerate(PHASES)}
TICKS_PER_S = 10_000_000
SCHEMA = 1

Account = tuple[str, str]
START_UP: Account = ("idle", "start-up")
OWN_COST: Account = ("idle", "ledger")
UNATTRIBUTED: Account = ("unattributed", "")


class CallRow(NamedTuple):
    """One collective as one rank saw it. Times on the ledger's clock, seconds.

    ``enter_s`` is the rank's arrival, ``leave_s`` the completion; ``wait_start_s`` to ``wait_end_s`` is when
    the rank's main thread stood still for it (``None``: it never did). ``seq`` counts within ``group``, and
    is the same number on each of the group's ranks. ``cause``: what it waited for, where somebody said so.
    """

    axis: str
    group: str
    op: str
    seq: int
    bytes: int
    enter_s: float
    leave_s: float
    wait_start_s: float | None = None
    wait_end_s: float | None = None
    cause: str = ""


class _Span:
    """``with`` for one account. Holds no time, so one object serves every use of its account."""

    __slots__ = ("_account", "_ledger")

    def __init__(self, ledger: Ledger, account: Account) -> None:
        self._ledger, self._account = ledger, account

    def __enter__(self) -> None:
        self._ledger._push(self._account)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ledger.leave()


class Ledger:
    """The exclusive-account timer of one rank, on one thread (:meth:`call` alone may come from any thread).

    Args:
        path: the file to append to, one line a step; ``None`` keeps nothing.
        rank: this rank.
        attempt: 0 for the first start of the run; each restart appends under a header of its own.
        clock: monotonic seconds; the same clock on every rank of a host, so that arrivals can be compared.
        start_s: when the process began, on that clock. From then until :meth:`started` or the first
            :meth:`close_step`, whatever no span covers is ``("idle", "start-up")``.
    """

    def __init__(
        self,
        path: Path | str | None,
        rank: int = 0,
        attempt: int = 0,
        clock: Callable[[], float] = time.monotonic,
        start_s: float | None = None,
    ) -> None:
        now = clock()
        self._clock = clock
        self._origin = round((now if start_s is None else min(start_s, now)) * TICKS_PER_S)
        self._since = self._origin / TICKS_PER_S
        self._line_start = self._since
        self._account: Account | None = START_UP
        self._stack: list[Account | None] = []
        self._base: Account | None = START_UP
        self._spans: list[tuple[Account, float, float]] = []
        self._calls: deque[CallRow] = deque()
        self._known: dict[Account, _Span] = {}
        self._pairs = 0
        self._written_s = 0.0
        self._pair_s = _cost_of_a_pair(clock) if clock is time.monotonic else 0.0
        self._file = _open_append(path) if path is not None else None
        self._write(
            {
                "schema": SCHEMA,
                "kind": "ledger",
                "rank": rank,
                "attempt": attempt,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "origin_s": self._origin / TICKS_PER_S,
                "origin_unix_s": round(time.time() - (now - self._origin / TICKS_PER_S), 6),
                "phases": list(PHASES),
            }
        )

    def span(self, phase: str, reason: str) -> _Span:
        """``with ledger.span("compute", "forward"):`` books what happens inside, less what is nested."""
        try:
            return self._known[phase, reason]
        except KeyError:
            return self._learn(phase, reason)

    def enter(self, phase: str, reason: str) -> None:
        """Pauses the current account and starts this one; for hooks, where ``with`` does not fit."""
        self.span(phase, reason).__enter__()

    def leave(self) -> None:
        """Ends the current account and resumes the one below. Unbalanced use raises ``RuntimeError``."""
        now = self._clock()
        if not self._stack:
            raise RuntimeError("ledger.leave() without ledger.enter()")
        if self._account is not None:
            self._spans.append((self._account, self._since, now))
        self._account = self._stack.pop()
        self._since = now

    def _push(self, account: Account) -> None:
        now = self._clock()
        if self._account is not None:
            self._spans.append((self._account, self._since, now))
        self._stack.append(self._account)
        self._account = account
        self._since = now
        self._pairs += 1

    def started(self) -> None:
        """Start-up is over: from here on, time outside every span is unattributed."""
        if self._base is None:
            return
        self._base = None
        if self._stack:
            self._stack[0] = None
        else:
            self._cut(self._clock())
            self._account = None

    def call(self, row: CallRow) -> None:
        """Records a collective; from any thread (``deque.append`` is atomic)."""
        self._calls.append(row)

    def close_step(self, step: int | None) -> dict[Account, float]:
        """Writes the step's line and returns seconds by account, :data:`UNATTRIBUTED` among them.

        Open spans go on: their time so far belongs to this step. The values sum to the time since the last
        close. Start-up ends here, if :meth:`started` has not ended it before.
        """
        self.started()
        end = self._clock()
        self._cut(end)
        start, self._line_start = self._line_start, end
        self._stack.append(
            self._account
        )  # own cost begins at ``end`` itself: no second falls between the lines
        self._account = OWN_COST
        spans, self._spans = self._spans, []
        seconds = self._write_step(step, spans, start, end)
        spans.clear()
        self.leave()
        self._written_s += self._since - end
        return seconds

    def close(self) -> None:
        """Writes what is left, as a line without a step. A second close does nothing."""
        if self._file is not None:
            self.close_step(None)
            os.close(self._file)
            self._file = None

    @property
    def overhead_s(self) -> float:
        """What the ledger has cost so far: writing as measured, enter/leave pairs as calibrated."""
        return self._written_s + self._pairs * self._pair_s

    def _learn(self, phase: str, reason: str) -> _Span:
        if phase not in PHASE_INDEX:
            raise ValueError(f"{phase!r} is not a phase of the ledger: {', '.join(PHASES)}")
        if not reason:
            raise ValueError(f"a span of {phase!r} needs a reason")
        return self._known.setdefault((phase, reason), _Span(self, (phase, reason)))

    def _cut(self, now: float) -> None:
        if self._account is not None:
            self._spans.append((self._account, self._since, now))
        self._since = now

    def _ticks(self, moment_s: float) -> int:
        return round(moment_s * TICKS_PER_S) - self._origin

    @staticmethod
    def _seconds(ticks: int) -> float:
        return ticks / TICKS_PER_S

    def _write_step(
        self, step: int | None, spans: list[tuple[Account, float, float]], start_s: float, end_s: float
    ) -> dict[Account, float]:
        rows, seconds = self._encode(spans, start_s, end_s)
        calls = [self._calls.popleft() for _ in range(len(self._calls))]
        self._write(
            {
                "step": step,
                "start_s": self._seconds(self._ticks(start_s)),
                "end_s": self._seconds(self._ticks(end_s)),
                "spans": rows,
                "calls": [self._encode_call(call) for call in calls],
            }
        )
        return seconds

    def _encode(
        self, spans: list[tuple[Account, float, float]], start_s: float, end_s: float
    ) -> tuple[list[list[object]], dict[Account, float]]:
        rows: list[list[object]] = []
        ticks: dict[Account, int] = {}
        origin = self._origin
        for account, since, until in spans:
            first, last = round(since * TICKS_PER_S), round(until * TICKS_PER_S)
            if last > first:
                start = (first - origin) / TICKS_PER_S
                rows.append([PHASE_INDEX[account[0]], account[1], start, (last - first) / TICKS_PER_S])
                ticks[account] = ticks.get(account, 0) + last - first
        ticks[UNATTRIBUTED] = self._ticks(end_s) - self._ticks(start_s) - sum(ticks.values())
        return rows, {account: n / TICKS_PER_S for account, n in ticks.items()}

    def _encode_call(self, call: CallRow) -> list[object]:
        times = (call.enter_s, call.leave_s, call.wait_start_s, call.wait_end_s)
        seconds = (None if t is None else self._seconds(self._ticks(t)) for t in times)
        return [*call[:5], *seconds, *([call.cause] if call.cause else [])]

    def _write(self, line: dict[str, object]) -> None:
        if self._file is not None:
            os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _open_append(path: Path | str) -> int:
    """A killed rank may have left half a line: the next attempt starts on a new one."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    size = os.lseek(descriptor, 0, os.SEEK_END)
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.write(descriptor, b"\n")
    return descriptor


def _cost_of_a_pair(clock: Callable[[], float], pairs: int = 200) -> float:
    trial = Ledger(None, clock=lambda: clock())  # the lambda ends the recursion: a trial has no trial
    span = trial.span("idle", "ledger")
    begin = clock()
    for _ in range(pairs):
        with span:
            pass
    return (clock() - begin) / pairs

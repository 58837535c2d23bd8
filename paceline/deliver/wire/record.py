"""What each collective cost this rank: one row in the ledger, one line in the shared slot.

Title of the hard why: *blocked is not the same as under way*. The rank's main thread stands still inside the
call and inside ``wait()``; only that time is booked to ``deliver``. From the call to its completion the
collective may also run behind compute; the row keeps both intervals, so that exposed and overlapped
communication can be told apart, and so that waiting for a late peer can be moved to ``idle`` afterwards.

Completion is known in one of three ways, whichever comes first closes the row, once: ``wait()`` returns; the
future of the work is done (DDP takes futures and never waits; the callback runs on a backend's thread and
touches no span); or nobody asked, and the work is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from paceline.deliver.wire.slot import Slot
from paceline.ledger.spans import CallRow


class Books(Protocol):
    """What the wire needs of a ledger (:class:`paceline.ledger.spans.Ledger` has it)."""

    def span(self, phase: str, reason: str, /) -> AbstractContextManager[object]: ...

    def call(self, row: CallRow, /) -> None: ...


class CallRecorder:
    """One rank's recorder, shared by all its groups.

    Args:
        ledger: where rows and spans go; ``None`` records nothing there.
        slot: the shared record of the last call, or ``None``.
        clock: monotonic seconds, the same on every rank of a host.
    """

    def __init__(
        self,
        ledger: Books | None = None,
        slot: Slot | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self.slot, self.clock = ledger, slot, clock
        self.spans: dict[tuple[str, str], AbstractContextManager[object]] = {}

    @property
    def ledger(self) -> Books | None:
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Books | None) -> None:
        self._ledger = ledger
        self.spans.clear()

    def group(self, name: str, axis: str = "world") -> GroupRecorder:
        return GroupRecorder(self, name, axis)

    def at_step(self, step: int) -> None:
        """Tells the side process that step ``step`` has begun."""
        if self.slot is not None:
            self.slot.at_step(step)


class GroupRecorder:
    """Numbers the calls of one group. The number is the same on each rank of the group.

    A point-to-point call is counted by (sender, receiver), under a group name of its own: the two ends see
    the same number although the other ranks see nothing.
    """

    def __init__(self, recorder: CallRecorder, name: str, axis: str) -> None:
        self.recorder, self.name, self.axis = recorder, name, axis
        self._seq: dict[str, int] = {}

    def begin(self, op: str, nbytes: int, pair: str = "") -> Call:
        """The rank arrives. Opens nothing yet: :meth:`blocked` is the account while it stands still."""
        name = f"{self.name}:{pair}" if pair else self.name
        seq = self._seq.get(name, 0)
        self._seq[name] = seq + 1
        recorder = self.recorder
        ticket = 0 if recorder.slot is None else recorder.slot.call(op, self.axis, name, seq)
        return Call(recorder, self.axis, name, op, seq, nbytes, recorder.clock(), ticket)

    def blocked(self, op: str) -> AbstractContextManager[object]:
        """The span ``deliver``, ``axis/op``."""
        try:
            return self.recorder.spans[self.axis, op]
        except KeyError:
            ledger = self.recorder.ledger
            span = _NOTHING if ledger is None else ledger.span("deliver", f"{self.axis}/{op}")
            return self.recorder.spans.setdefault((self.axis, op), span)


class Call:
    """One collective on one rank, from arrival to completion."""

    __slots__ = (
        "_open", "_recorder", "_ticket", "axis", "clock", "end_s", "group", "has_future", "nbytes",
        "op", "seq", "start_s", "wait_s",
    )  # fmt: skip

    def __init__(
        self,
        recorder: CallRecorder,
        axis: str,
        group: str,
        op: str,
        seq: int,
        nbytes: int,
        start_s: float,
        ticket: int = 0,
    ) -> None:
        self._recorder, self._ticket, self.clock, self.has_future = recorder, ticket, recorder.clock, False
        self.axis, self.group, self.op, self.seq, self.nbytes = axis, group, op, seq, nbytes
        self.start_s, self.end_s = start_s, 0.0
        self.wait_s: tuple[float, float] | None = None
        self._open = [True]  # list.pop is atomic: two threads may end a call, one of them writes it

    def __str__(self) -> str:
        return f"{self.op} #{self.seq} on {self.axis} ({self.group})"

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def complete(self, now: float | None = None) -> None:
        """The data has arrived; from any thread, any number of times, the first counts."""
        if not self.end_s:
            self.end_s = self.clock() if now is None else now

    def close(self) -> None:
        """Writes the row, once; completes the call if nobody has."""
        try:
            self._open.pop()
        except IndexError:
            return
        self.complete()
        recorder = self._recorder
        if recorder.slot is not None:
            recorder.slot.left(self._ticket)
        if recorder.ledger is not None:
            start, end = self.wait_s or (None, None)
            recorder.ledger.call(
                CallRow(
                    self.axis,
                    self.group,
                    self.op,
                    self.seq,
                    self.nbytes,
                    self.start_s,
                    self.end_s,
                    start,
                    end,
                )
            )


class _Nothing(AbstractContextManager[None]):
    def __exit__(self, *_: object) -> None:
        return None


_NOTHING = _Nothing()

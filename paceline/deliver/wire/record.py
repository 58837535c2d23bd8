"""What each collective cost this rank: one row in the ledger, one line in the shared slot.

Title of the hard why: *blocked is not the same as under way*. The rank's main thread stands still inside the
call and inside ``wait()``; only that time is booked to ``deliver``. From the call to its completion the
collective may also run behind compute; the row keeps both intervals, so that exposed and overlapped
communication can be told apart, and so that waiting for a late peer can be moved to ``idle`` afterwards.

Completion is known in one of three ways, whichever comes first closes the row, once: ``wait()`` returns; the
future of the work is done (DDP takes futures and never waits; the callback runs on a backend's thread and
touches no span); or nobody asked, and the work is dropped.

Title of another: *who waits for a stage of a pipeline is idle*. What a receive of the axis ``pp`` takes is the
pipeline's bubble, not the transfer, so it is booked to ``idle``; what it waits for is said beforehand
(:meth:`GroupRecorder.expect`), and kept in the call's row.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from paceline.deliver.wire.slot import Slot
from paceline.ledger.spans import CallRow

Account = AbstractContextManager[object]

BUBBLE = ("idle", "bubble")


class Books(Protocol):
    """What the wire needs of a ledger (:class:`paceline.ledger.spans.Ledger` has it)."""

    def span(self, phase: str, reason: str, /) -> Account: ...

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
        self._accounts: dict[tuple[str, str], Account] = {}

    @property
    def ledger(self) -> Books | None:
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Books | None) -> None:
        self._ledger = ledger
        self._accounts.clear()

    def group(self, name: str, axis: str = "world", timeout_s: float = 0.0) -> GroupRecorder:
        return GroupRecorder(self, name, axis, timeout_s)

    def account(self, axis: str, op: str) -> Account:
        """The span ``deliver``, ``axis/op``, or the bubble: opened while the rank stands still."""
        try:
            return self._accounts[axis, op]
        except KeyError:
            phase, reason = BUBBLE if (axis, op) == ("pp", "recv") else ("deliver", f"{axis}/{op}")
            span = _NOTHING if self._ledger is None else self._ledger.span(phase, reason)
            return self._accounts.setdefault((axis, op), span)

    def at_step(self, step: int) -> None:
        """Tells the side process that step ``step`` has begun."""
        if self.slot is not None:
            self.slot.at_step(step)


class GroupRecorder:
    """Numbers the calls of one group. The number is the same on each rank of the group.

    A point-to-point call is counted by (sender, receiver), under a group name of its own: the two ends see
    the same number although the other ranks see nothing.
    """

    def __init__(self, recorder: CallRecorder, name: str, axis: str, timeout_s: float) -> None:
        self.recorder, self.name, self.axis, self.timeout_s = recorder, name, axis, timeout_s
        self._seq: dict[str, int] = {}
        self._expected: dict[str, deque[str]] = defaultdict(deque)

    def expect(self, pair: str, cause: str) -> None:
        """Says what the next receive of ``pair`` (``sender>receiver``) waits for: first said, first received."""
        self._expected[pair].append(cause)

    def begin(self, op: str, nbytes: int, pair: str = "") -> Call:
        """The rank arrives. Opens no account yet: that is ``call.account``, for as long as it stands
        still."""
        name = f"{self.name}:{pair}" if pair else self.name
        seq = self._seq.get(name, 0)
        self._seq[name] = seq + 1
        expected = self._expected.get(pair) if op == "recv" else None
        return Call(self, name, op, seq, nbytes, expected.popleft() if expected else "")


class Call:
    """One collective on one rank, from arrival to completion.

    Attributes:
        account: what to open while the rank stands still for it.
        start_s, end_s: arrival and completion; ``end_s`` is 0 until it is known.
        wait_s: when the rank stood still for it, in ``wait()`` or at the end of a backward pass.
        has_future: somebody took its future, which will close the row.
        cause: what it waits for, where that was said.
    """

    __slots__ = (
        "_open", "_recorder", "_ticket", "account", "axis", "cause", "clock", "end_s", "group", "has_future",
        "nbytes", "op", "seq", "start_s", "timeout_s", "wait_s",
    )  # fmt: skip

    def __init__(
        self, made_by: GroupRecorder, group: str, op: str, seq: int, nbytes: int, cause: str = ""
    ) -> None:
        recorder = self._recorder = made_by.recorder
        self.axis = axis = made_by.axis
        self.timeout_s = made_by.timeout_s
        self.group, self.op, self.seq, self.nbytes, self.cause = group, op, seq, nbytes, cause
        self.account = recorder.account(axis, op)
        self.wait_s: tuple[float, float] | None = None
        self.has_future = False
        self.end_s = 0.0
        self._open = [True]  # list.pop is atomic: two threads may end a call, one of them writes it
        self._ticket = 0 if recorder.slot is None else recorder.slot.call(op, axis, group, seq)
        self.clock = recorder.clock
        self.start_s = self.clock()

    def __str__(self) -> str:
        return f"{self.op} #{self.seq} on {self.axis} ({self.group})"

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def complete(self, now: float = 0.0) -> None:
        """The data has arrived; from any thread, any number of times, the first counts."""
        if not self.end_s:
            self.end_s = now or self.clock()

    def close(self) -> None:
        """Writes the row, once; completes the call if nobody has."""
        try:
            self._open.pop()
        except IndexError:
            return
        self.complete()
        slot, ledger = self._recorder.slot, self._recorder.ledger
        if slot is not None:
            slot.left(self._ticket)
        if ledger is not None:
            start, end = self.wait_s or (None, None)
            ledger.call(
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
                    self.cause,
                )
            )


class _Nothing(AbstractContextManager[None]):
    def __exit__(self, *_: object) -> None:
        return None


_NOTHING = _Nothing()

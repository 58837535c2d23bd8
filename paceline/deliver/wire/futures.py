"""Calls that nobody waits for: whoever took the future is told in C++, and the wire hears of it by a
callback.

Title of the hard why: *DDP stands still where no hook sees it*. Inside a backward pass the taker of the
future is DDP, which waits for its buckets at the end of the pass, in C++. But the engine runs end-of-pass
callbacks in the order in which they were queued, and DDP queues its own after it has sent its last bucket:
one that is queued with the first bucket runs just before DDP waits, and one queued by that one just after.
Between the two the rank is blocked, and the time is booked to ``deliver`` instead of the backward pass around
it. What DDP itself waits for by handle in between (the map of used parameters) has a row with its own wait: the
callback that ends a bucket may come later than that wait begins, so the buckets share only what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.deliver.wire.record import Account, Call


def watch(future: torch.futures.Future[Any], entry: Call) -> None:
    """Closes the row when the future is done; books as blocked only the end of a backward pass."""
    entry.has_future = True
    task = torch._C._current_graph_task_id()
    if task == -1:
        future.add_done_callback(lambda _: entry.close())
        return
    future.add_done_callback(lambda _: entry.complete())
    open_pass = _EndOfPass.current
    if open_pass is None or open_pass.task != task:
        open_pass = _EndOfPass.current = _EndOfPass(task, entry.account)
        torch.autograd.Variable._execution_engine.queue_callback(open_pass.before)
    open_pass.entries.append(entry)


def waited(start_s: float, end_s: float) -> None:
    """Tells an ending pass that the rank stood still for a call whose handle was waited for."""
    if _EndOfPass.current is not None:
        _EndOfPass.current.by_handle.append((start_s, end_s))


class _EndOfPass:
    """The calls of one backward pass whose futures were taken, in the order in which DDP waits for them."""

    current: _EndOfPass | None = None

    def __init__(self, task: int, account: Account) -> None:
        self.task, self.account, self.start_s = task, account, 0.0
        self.entries: list[Call] = []
        self.by_handle: list[tuple[float, float]] = []

    def before(self) -> None:
        self.start_s = self.entries[0].clock()
        torch.autograd.Variable._execution_engine.queue_callback(self.after)
        self.account.__enter__()

    def after(self) -> None:
        self.account.__exit__(None, None, None)
        for entry in self.entries:
            entry.complete()
        ends = [entry.end_s for entry in self.entries]
        for entry, wait in zip(self.entries, shares(self.start_s, ends, self.by_handle), strict=True):
            if wait is not None:
                entry.wait_s = wait
            entry.close()
        _EndOfPass.current = None


def shares(
    start_s: float, ends_s: Sequence[float], taken: Sequence[tuple[float, float]]
) -> list[tuple[float, float] | None]:
    """The time from ``start_s`` on, dealt to calls that were waited for in order: each until it ended, of that the
    longest part that is not ``taken``. No two shares meet; a call that was over already has none.
    """
    found: list[tuple[float, float] | None] = []
    since = start_s
    for end in ends_s:
        parts = _without((since, end), taken) if end > since else []
        found.append(max(parts, key=lambda part: part[1] - part[0], default=None))
        since = max(since, end)
    return found


def _without(whole: tuple[float, float], taken: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    parts = [whole]
    for start, end in taken:
        cut = [(a, min(b, start)) for a, b in parts] + [(max(a, end), b) for a, b in parts]
        parts = [(a, b) for a, b in cut if a < b]
    return parts

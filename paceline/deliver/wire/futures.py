"""Calls that nobody waits for: whoever took the future is told in C++, and the wire hears of it by a
callback.

Title of the hard why: *DDP stands still where no hook sees it*. Inside a backward pass the taker of the
future is DDP, which waits for its buckets at the end of the pass, in C++. But the engine runs end-of-pass
callbacks in the order in which they were queued, and DDP queues its own after it has sent its last bucket:
one that is queued with the first bucket runs just before DDP waits, and one queued by that one just after.
Between the two the rank is blocked, and the time is booked to ``deliver`` instead of the backward pass around
it.
"""

from __future__ import annotations

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


class _EndOfPass:
    """The calls of one backward pass whose futures were taken, in the order in which DDP waits for them."""

    current: _EndOfPass | None = None

    def __init__(self, task: int, account: Account) -> None:
        self.task, self.account, self.start_s = task, account, 0.0
        self.entries: list[Call] = []

    def before(self) -> None:
        self.start_s = self.entries[0].clock()
        torch.autograd.Variable._execution_engine.queue_callback(self.after)
        self.account.__enter__()

    def after(self) -> None:
        self.account.__exit__(None, None, None)
        since = self.start_s
        for entry in self.entries:
            entry.complete()
            if entry.end_s > since:
                entry.wait_s = (since, entry.end_s)
                since = entry.end_s
            entry.close()
        _EndOfPass.current = None

"""Ranks brought to a stand for a moment, so that what they share can be read before they are ended. Linux only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

STAND_S = 1.0
_STANDS = frozenset("TtZX")  # stopped, traced, ended


def freeze(pids: Iterable[int]) -> None:
    """Stop these processes, and return when they stand still or have ended.

    *Why not the signal alone*: a process that is running on another core goes on until the kernel has reached it.
    """
    waiting = set(pids)
    for pid in waiting:
        _send(pid, signal.SIGSTOP)
    until = time.monotonic() + STAND_S
    while waiting and time.monotonic() < until:
        waiting = {pid for pid in waiting if _state(pid) not in _STANDS}
        if waiting:
            time.sleep(0.001)


def thaw(pids: Iterable[int]) -> None:
    """Let them go on."""
    for pid in pids:
        _send(pid, signal.SIGCONT)


def has_ended(pid: int) -> bool:
    """Whether the process is gone, or has ended and was not asked for yet."""
    return _state(pid) in "ZX"


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _state(pid: int) -> str:
    """As in ``/proc``; ``X`` for a process that is not there any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"

"""A limit in seconds on a block of a test, by the alarm signal: what hangs fails."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def hard_limit(seconds: float) -> Iterator[None]:
    def overrun(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"over its hard limit of {seconds:g} s")

    before = signal.signal(signal.SIGALRM, overrun)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

"""Ctrl-C and SIGTERM: the first asks the run to stop after its step, the second leaves at once.

Signals reach Python only in the main thread; elsewhere (a notebook's worker, a test's thread) nothing is
installed and only the caller's own ``stop`` can end a run early. A signal that the parent had set to be
ignored (a background job of a shell script) stays ignored.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

Stop = Callable[[], str | None]
_HANDLED = (signal.SIGINT, signal.SIGTERM)


class Stopper:
    """``with Stopper() as stopper:`` handles both signals inside; ``stopper()`` is the reason to stop, or
    ``None``.

    The second signal raises :class:`SystemExit` with 130 or 143, from wherever the main thread is. One inside
    another leaves the handling to the outer one, so that a caller who starts ranks again after a failure can
    hold one around all attempts, give it to each as ``stop``, and lose no Ctrl-C between them.
    """

    def __init__(self, also: Stop = lambda: None) -> None:
        self.reason: str | None = None
        self._also = also
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> str | None:
        if self.reason is None:
            self.reason = self._also()
        return self.reason

    def __enter__(self) -> Stopper:
        outer = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
        if threading.current_thread() is threading.main_thread() and not isinstance(outer, Stopper):
            for number in _HANDLED:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.reason in ("SIGINT", "SIGTERM"):
            raise SystemExit(128 + number)
        self.reason = signal.Signals(number).name

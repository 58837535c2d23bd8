"""stdout and stderr as they are: a pipe whose reader has left, a full disk, or nothing at all.

stdout carries the result: that it cannot be written ends a command (141 where the reader has left, else 55
with the reason). stderr carries what is said beside it: it is lost without a word, the exit code still tells.
A training outlives its readers, see :class:`paceline.cli.console.Console`.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, TextIO

from paceline.ledger.outcome import Exit, Failed

BROKEN_PIPE = 141


class StdoutLost(Exception):
    """The result cannot be written. No OSError, so that nobody on the way takes it for one of a file."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.reader_left = isinstance(cause, BrokenPipeError)
        self.reason = getattr(cause, "strerror", None) or str(cause)

    def explained(self) -> Failed:
        """The end of a command whose result nobody could be given."""
        return Failed(
            "the result cannot be written",
            exit_code=Exit.STORE,
            seen=f"stdout: {self.reason}",
            rule="the result goes to stdout, which must take it",
            use="free some space, or send stdout elsewhere: paceline … > FILE",
        )


class Tolerant:
    """A stream that swallows what cannot be written; for writers with threads of their own (rich)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """All of it, or nothing."""
        put(text, self._stream, end="")
        return len(text)

    def flush(self) -> None:
        """Written is flushed already."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def put(text: str, stream: TextIO, *, end: str = "\n") -> bool:
    """Writes and flushes; False when the stream takes nothing any more, which it then is rid of for good."""
    try:
        print(text, file=stream, end=end, flush=True)
    except (OSError, ValueError):
        drop(stream)
        return False
    return True


def put_result(text: str, stream: TextIO) -> None:
    """Writes and flushes a line of the result. Raises StdoutLost."""
    try:
        print(text, file=stream, flush=True)
    except UnicodeError:
        raise
    except (OSError, ValueError) as error:
        drop(stream)
        raise StdoutLost(error) from error


def drop(stream: TextIO | None) -> None:
    """Whatever is still in the stream, and all that follows, goes nowhere; Python then ends without a word."""
    with suppress(OSError, ValueError, AttributeError):
        number = stream.fileno()  # type: ignore[union-attr]
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def open_closed() -> None:
    """A stream that the caller has closed (``>&-``) is as one to /dev/null.

    The numbers 0 to 2 are taken, too: else the next file that is opened would get what is printed.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)  # the lowest free number
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def settle() -> bool:
    """Flushes both streams before the end; whether stdout took everything."""
    took = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            drop(stream)
            took = took and stream is not sys.stdout
    return took

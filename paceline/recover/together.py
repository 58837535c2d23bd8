"""What the ranks of a save need to go on together or fail together, however they talk. No torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from paceline.ledger.outcome import Exit, Failed, PacelineError

T = TypeVar("T")


class Together(Protocol):
    """The ranks that save or load one state."""

    rank: int
    size: int

    def together(self, part: Callable[[], T], *, on: int | None = None) -> T | None:
        """Run this rank's part (of rank ``on`` only, if given) and wait for the others'."""
        ...

    def total(self, value: int) -> int:
        """The sum of every rank's number."""
        ...


def as_paceline(error: Exception, rank: int) -> PacelineError:
    """The error itself, or for one that nobody expected, a report of it."""
    if isinstance(error, PacelineError):
        return error
    return Failed(
        f"rank {rank}: {type(error).__name__}: {error}",
        exit_code=Exit.FAULT,
        seen=type(error).__name__,
        rule="a rank that fails ends the save or load on all ranks",
        use="see the log of that rank for the traceback",
    )

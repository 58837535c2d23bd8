"""When something that repeats is due: evaluations and checkpoints.

Intervals in steps, epochs or shares of the run are functions of the step, which every rank knows. Intervals in
seconds are read off rank 0's clock alone, and its answer travels with the step's own reduction.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.job.interval import Interval


class Due:
    """One repeating thing.

    Args:
        every: the job's interval.
        steps: optimizer steps of the run.
        steps_per_epoch: may be fractional.
        clock: monotonic seconds; used for intervals in seconds only.
    """

    def __init__(
        self, every: Interval, steps: int, steps_per_epoch: float, clock: Callable[[], float]
    ) -> None:
        self._seconds = every.value if every.kind == "seconds" else None
        self._period = _period(every, steps, steps_per_epoch)
        self._clock = clock
        self._since_s = clock()

    def by_step(self, step: int) -> bool:
        """Whether a period in steps ends with ``step``: the k-th is due at the step nearest to k periods."""
        if self._period is None:
            return False
        return int((step + 0.5) / self._period) > int((step - 0.5) / self._period)

    def since(self, before: int, step: int) -> bool:
        """Whether it should have happened after ``before`` and until ``step``; by a clock that was lost: always."""
        if before >= step or (self._period is None and self._seconds is None):
            return False
        if self._period is None:
            return True
        return int((step + 0.5) / self._period) > int((before + 0.5) / self._period)

    def by_clock(self) -> bool:
        """Rank 0: whether the seconds since the last time have passed."""
        return self._seconds is not None and self._clock() - self._since_s >= self._seconds

    def happened(self) -> None:
        """Start the seconds again."""
        self._since_s = self._clock()


def _period(every: Interval, steps: int, steps_per_epoch: float) -> float | None:
    if every.kind == "steps":
        return max(1.0, float(every.value))
    if every.kind == "epochs":
        return max(1.0, every.value * steps_per_epoch)
    if every.kind == "fraction":
        return max(1.0, every.value * steps)
    return None  # never, or by the clock

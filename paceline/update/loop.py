"""The train loop.

Every second of it is inside a span of the ledger. What happens around a step (batches, evaluation, checkpoints,
rows) comes as hooks, so that this page reads as the five phases do: data, compute and deliver inside ``policy.step``,
update, recover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from paceline.ledger.spans import Ledger
from paceline.update.controls import Verdict
from paceline.update.due import Due
from paceline.update.every_step import Counts, EveryStep
from paceline.update.schedule import Schedule
from paceline.update.telemetry import Telemetry

STOPS = ("", "SIGINT", "SIGTERM", "stop command", "max_time", "on_row")
"""Reasons to stop from outside; rank 0 sends the index with the step's reduction."""


@dataclass(frozen=True)
class Hooks:
    """What the loop calls. ``stop`` is asked on rank 0 only; the others run on every rank, at the same steps.

    ``save`` takes a step and whether to return only once it is safe, and returns the seconds that training waited.
    """

    batches: Callable[[int], tuple[Sequence[Mapping[str, Tensor]], Counts]]
    evaluate: Callable[[int], object]
    save: Callable[[int, bool], float]
    stop: Callable[[], str | None]
    beat: Callable[[int], None]


@dataclass(frozen=True)
class End:
    """Why the loop ended: after ``step`` finished steps; all done, a ``stop`` from outside, or a ``verdict``."""

    step: int
    stop: str = ""
    verdict: Verdict | None = None
    saved: bool = False


def train(
    policy: EveryStep,
    schedule: Schedule,
    hooks: Hooks,
    telemetry: Telemetry,
    ledger: Ledger,
    *,
    rank: int,
    start: int,
    eval_due: Due,
    save_due: Due,
) -> End:
    """Run the steps after ``start`` up to the schedule's last.

    A stop from outside ends the loop after the step in which rank 0 heard of it, saved. A verdict ends it with the
    weights as they were before the step, not saved: the last checkpoint stands.
    """
    for step in range(start + 1, schedule.steps + 1):
        with ledger.span("idle", "data"):
            micro_batches, counts = hooks.batches(step)
        with ledger.span("update", "decide"):
            decisions = _decide(hooks, eval_due, save_due) if rank == 0 else (0.0, 0.0, 0.0)
            rate = schedule.rate(step)
        result = policy.step(micro_batches, counts, rate, telemetry.carried, decisions)
        accounts = ledger.close_step(step)
        with ledger.span("update", "rows"):
            telemetry.step(step, rate, result, accounts)
        if result.verdict is not None:
            return End(step - 1, verdict=result.verdict)

        stop = STOPS[int(result.decisions[0])]
        last = step == schedule.steps
        if not last and (eval_due.by_step(step) or result.decisions[1]):
            with ledger.span("compute", "evaluate"):
                hooks.evaluate(step)
            eval_due.happened()
            ledger.close_step(None)  # neither evaluation nor a save is part of a step's line
        if last or stop or save_due.by_step(step) or result.decisions[2]:
            with ledger.span("recover", "checkpoint"):
                telemetry.stalled(hooks.save(step, last or bool(stop)))
            save_due.happened()
            ledger.close_step(None)
        with ledger.span("update", "rows"):
            hooks.beat(step)
        if stop and not last:
            return End(step, stop=stop, saved=True)
    return End(schedule.steps, saved=True)


def _decide(hooks: Hooks, eval_due: Due, save_due: Due) -> tuple[float, float, float]:
    """What only rank 0 may say, since it looks at a clock or at the outside world."""
    stop = hooks.stop() or ""
    code = STOPS.index(stop) if stop in STOPS else STOPS.index("stop command")
    return float(code), float(eval_due.by_clock()), float(save_due.by_clock())

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

STOPS = ("", "SIGINT", "SIGTERM", "stop command", "max_time", "on_row", "control")
"""Reasons to stop after a step; rank 0 sends the index with the step's reduction."""


@dataclass(frozen=True)
class Hooks:
    """What the loop calls. ``stop`` is asked on rank 0 only; the others run on every rank, at the same steps.

    ``save`` takes a step and whether to return only once it is safe, and returns the seconds that training waited.
    ``fired`` gets a step and each rule that fired on it; ``compare`` says what rules say of replicas after a step.
    """

    batches: Callable[[int], tuple[Sequence[Mapping[str, Tensor]], Counts]]
    evaluate: Callable[[int], object]
    save: Callable[[int, bool], float]
    stop: Callable[[], str | None]
    beat: Callable[[int], None]
    fired: Callable[[int, Verdict], None] = lambda step, verdict: None
    compare: Callable[[int], Sequence[Verdict]] = lambda step: ()


@dataclass(frozen=True)
class End:
    """Why the loop ended: after ``step`` finished steps; all done, a ``stop`` from outside, or a ``verdict``.

    ``saved``: whether the state after ``step`` is in a checkpoint that this loop began.
    """

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
    last: int | None = None,
    saved: int | None = None,
    eval_due: Due,
    save_due: Due,
    compare_due: Due,
) -> End:
    """Run the steps after ``start`` up to ``last``, by default the schedule's last.

    A stop from outside ends the loop after the step in which rank 0 heard of it, saved. A rule that leaves a step out
    makes it one that changes nothing. One that stops or goes back ends the loop with the weights as they were before
    the step: saved where a rule of the job stops, since they are sound; else the last checkpoint stands. ``saved``: of
    a state that goes on from memory, the step of the newest checkpoint; what follows the step ``start`` may still be
    to do.
    """
    last = schedule.steps if last is None else last
    after = _After(last, hooks, telemetry, ledger, eval_due, save_due, compare_due)
    if saved is not None and saved < start:
        after(start, (0.0, 0.0, float(save_due.since(saved, start)), 0.0))
    for step in range(start + 1, last + 1):
        with ledger.span("idle", "data"):
            micro_batches, counts = hooks.batches(step)
        with ledger.span("update", "decide"):
            decisions = _decide(hooks, eval_due, save_due, compare_due) if rank == 0 else (0.0,) * 4
            rate = schedule.rate(step)
        result = policy.step(micro_batches, counts, rate, telemetry.carried, decisions)
        accounts = ledger.close_step(step)
        with ledger.span("update", "rows"):
            telemetry.step(step, rate, result, accounts)
        for verdict in result.fired:
            hooks.fired(step, verdict)
        if result.verdict is not None and result.verdict.ends:
            sound = result.verdict.action == "stop" and result.verdict.signal != "nonfinite"
            if sound and step > 1:
                after.save(step - 1, until_safe=True)
            return End(step - 1, verdict=result.verdict, saved=sound)
        stop = after(step, result.decisions)
        if after.verdict is not None:
            return End(step, verdict=after.verdict)
        if stop and step < last:
            return End(step, stop=stop, saved=True)
    return End(last, saved=True)


@dataclass
class _After:
    """What follows a step whose weights are changed: an evaluation, a save, a sign of life.

    Nothing is saved that replicas do not agree about: they are compared before each save, and then ``verdict`` is what
    ends the run.
    """

    steps: int
    hooks: Hooks
    telemetry: Telemetry
    ledger: Ledger
    eval_due: Due
    save_due: Due
    compare_due: Due
    verdict: Verdict | None = None
    _saved: int = -1

    def __call__(self, step: int, decisions: Sequence[float]) -> str:
        """The reason to stop, "" for none."""
        stop = STOPS[int(decisions[0])]
        last = step == self.steps
        if not last and (self.eval_due.by_step(step) or decisions[1]):
            with self.ledger.span("compute", "evaluate"):
                self.hooks.evaluate(step)
            self.eval_due.happened()
            self.ledger.close_step(None)  # neither evaluation nor a save is part of a step's line
        save = last or stop or self.save_due.by_step(step) or decisions[2]
        if (save or self.compare_due.by_step(step) or decisions[3]) and not self._agree(step):
            return ""
        if save:
            self.save(step, until_safe=last or bool(stop))
        with self.ledger.span("update", "rows"):
            self.hooks.beat(step)
        return stop

    def _agree(self, step: int) -> bool:
        with self.ledger.span("update", "controls"):
            found = self.hooks.compare(step)
        self.compare_due.happened()
        self.ledger.close_step(None)
        for verdict in found:
            self.hooks.fired(step, verdict)
        self.verdict = found[0] if found and found[0].acts else None
        return self.verdict is None

    def save(self, step: int, *, until_safe: bool) -> None:
        """The state after ``step``, once."""
        if self._saved != step:
            with self.ledger.span("recover", "checkpoint"):
                self.telemetry.stalled(self.hooks.save(step, until_safe))
            self._saved = step
            self.save_due.happened()
            self.ledger.close_step(None)


def _decide(hooks: Hooks, eval_due: Due, save_due: Due, compare_due: Due) -> tuple[float, ...]:
    """What only rank 0 may say, since it looks at a clock or at the outside world."""
    stop = hooks.stop() or ""
    code = STOPS.index(stop) if stop in STOPS else STOPS.index("stop command")
    return float(code), float(eval_due.by_clock()), float(save_due.by_clock()), float(compare_due.by_clock())

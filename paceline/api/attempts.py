"""Starts the ranks of a run, and starts them again when one of them dies: from memory, or from the last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.api.elastic import left_over
from paceline.api.surviving import Survivors
from paceline.launch.local import run_here, run_ranks
from paceline.launch.signals import Stop, Stopper
from paceline.ledger.metrics import MetricsWriter
from paceline.ledger.outcome import Exit, Failed, PacelineError
from paceline.ledger.plural import many
from paceline.recover.checkpoint import latest, open_manifest

if TYPE_CHECKING:
    from paceline.plan.layout import Layout
    from paceline.plan.model import Widths
    from paceline.recipes.brief import Brief

OnMessage = Callable[[dict[str, Any]], None]

ENTRY = "paceline.recipes.rank:run"
RESTARTABLE = frozenset({Exit.RANK_DIED, Exit.HUNG, Exit.PEERS})
INNER_SHARE = (
    0.8  # of restart.hang_timeout: ranks give up on a collective before the launcher gives up on them
)


def run_attempts(
    brief: Brief,
    *,
    widths: Widths,
    threads: int,
    on_message: OnMessage,
    on_attempt: Callable[[Brief], None],
    stop: Stop,
) -> dict[str, Any]:
    """Rank 0's result of the attempt that ended.

    One rank runs in the calling process and is not restarted: what kills it kills the caller.

    Args:
        widths: of the model, by which the layout of the ranks that are left is judged (``restart.elastic``).
        on_attempt: gets what each restart is told, before it.

    Raises:
        PacelineError: what the ranks raised; 58 when a rank died and ``restart.max`` is 0; 57 when it died more
            than ``restart.max`` times in a row without a new step between.
    """
    with Stopper(stop) as stopper:  # one around all attempts: no Ctrl-C is lost between them
        attempts = _Attempts(brief, widths, threads, on_message, on_attempt, stopper)
        try:
            return attempts.until_done()
        finally:
            attempts.close()


class _Attempts:
    """The starts of one run, one after another."""

    def __init__(
        self,
        brief: Brief,
        widths: Widths,
        threads: int,
        on_message: OnMessage,
        on_attempt: Callable[[Brief], None],
        stop: Stop,
    ) -> None:
        self._brief, self._widths, self._threads = brief, widths, threads
        self._on_message, self._on_attempt, self._stop = on_message, on_attempt, stop
        self._reached = None if brief.resume is None else open_manifest(brief.resume).step
        self._without_progress = 0
        self._died: set[int] = set()
        self._survivors: Survivors | None = None
        if brief.layout.world_size > 1 and brief.job.restart.max > 0 and not brief.timed:
            self._survivors = Survivors.of(brief.layout.world_size)
        if self._survivors is not None:
            self._brief = replace(brief, alive=self._survivors.alive(brief.attempt, self._reached))

    def until_done(self) -> dict[str, Any]:
        """Start, and start again, until an attempt ends by itself."""
        while True:
            try:
                return self._launch()
            except PacelineError as error:
                self._prepare_next(error)

    def close(self) -> None:
        """Give back the memory in which ranks would have found their states."""
        if self._survivors is not None:
            self._survivors.close()

    def _prepare_next(self, error: PacelineError) -> None:
        brief, most = self._brief, self._brief.job.restart.max
        if brief.layout.world_size == 1 or error.exit_code not in RESTARTABLE or most == 0:
            raise error
        layout = self._next_layout()
        newest = latest(brief.folder.checkpoints)
        saved = None if newest is None else open_manifest(newest).step
        alive = None
        if self._survivors is not None:
            alive = self._survivors.alive(brief.attempt, saved, layout.world_size)
        step = alive.step if alive is not None and alive.step is not None else saved
        self._without_progress = self._without_progress + 1 if step == self._reached else 1
        if self._without_progress > most:
            raise _used_up(error, most) from error
        self._reached = step
        self._brief = replace(
            brief,
            layout=layout,
            planned=brief.planned or brief.layout,
            attempt=brief.attempt + 1,
            resume=newest,
            alive=alive,
        )
        row = _restart_row(self._brief, brief.layout, error, step or 0)
        _write(brief, row)
        self._on_message(row)
        self._on_attempt(self._brief)

    def _next_layout(self) -> Layout:
        """The same, or that of the ranks that are left where the job wants to go on with these."""
        died, self._died = self._died, set()
        if not self._brief.job.restart.elastic or not died:
            return self._brief.layout
        return left_over(self._brief.layout, len(died), self._brief.job, self._widths) or self._brief.layout

    def _before_end(self, living: dict[int, int], died: set[int]) -> None:
        self._died = set(died)
        if self._survivors is not None:
            self._survivors.settle(living)

    def _launch(self) -> dict[str, Any]:
        brief, hang_s = self._brief, self._brief.job.restart.hang_timeout
        settings: dict[str, Any] = {
            "logs": brief.folder.logs,
            "threads_per_rank": self._threads,
            "timeout_s": hang_s * INNER_SHARE,
            "hang_timeout_s": hang_s,
            "on_message": lambda rank, row: self._on_message(row),
            "stop": self._stop,
            "attempt": brief.attempt,
        }
        if brief.layout.world_size == 1:
            return run_here(ENTRY, brief.payload(), **settings)[0]
        settings["before_end"] = self._before_end
        return run_ranks(ENTRY, brief.payload(), world_size=brief.layout.world_size, **settings)[0]


def _restart_row(brief: Brief, before: Layout, error: PacelineError, step: int) -> dict[str, Any]:
    if brief.alive is not None and brief.alive.step is not None:
        source = f"memory, after step {step}"
    else:
        source = "the beginning" if brief.resume is None else brief.resume.name
    detail = {"cause": error.message, "from": source}
    if brief.layout != before:
        detail["layout"] = str(brief.layout)
    return {
        "kind": "event",
        "step": step,
        "attempt": brief.attempt,
        "time_s": round(time.time() - brief.started_unix_s, 4),
        "event": "restart",
        "detail": detail,
    }


def _write(brief: Brief, row: dict[str, Any]) -> None:
    writer = MetricsWriter(brief.folder.metrics)
    writer.write(row)
    writer.close()


def _used_up(error: PacelineError, most: int) -> Failed:
    return Failed(
        f"stopped after {many(most, 'restart')} without progress: {error.message}",
        exit_code=Exit.RESTARTS,
        key="restart.max",
        seen=error.seen,
        rule=f"at most restart.max = {many(most, 'restart')} in a row without a new step",
        use=error.use or "look at the ranks' logs: paceline logs last --rank 0",
        where=error.where,
    )

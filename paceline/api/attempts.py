"""Starts the ranks of a run, and starts them again when one of them dies: from memory, or from the last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.api.surviving import Survivors
from paceline.launch.local import run_here, run_ranks
from paceline.launch.signals import Stop, Stopper
from paceline.ledger.metrics import MetricsWriter
from paceline.ledger.outcome import Exit, Failed, PacelineError
from paceline.ledger.plural import many
from paceline.recover.checkpoint import latest, open_manifest

if TYPE_CHECKING:
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
    threads: int,
    on_message: OnMessage,
    on_attempt: Callable[[int], None],
    stop: Stop,
) -> dict[str, Any]:
    """Rank 0's result of the attempt that ended.

    One rank runs in the calling process and is not restarted: what kills it kills the caller.

    Raises:
        PacelineError: what the ranks raised; 58 when a rank died and ``restart.max`` is 0; 57 when it died more
            than ``restart.max`` times in a row without a new step between.
    """
    with Stopper(stop) as stopper:  # one around all attempts: no Ctrl-C is lost between them
        survivors = _survivors(brief)
        try:
            return _until_done(brief, survivors, threads, on_message, on_attempt, stopper)
        finally:
            if survivors is not None:
                survivors.close()


def _survivors(brief: Brief) -> Survivors | None:
    """Memory for the states of ranks that would be started again."""
    again = brief.layout.world_size > 1 and brief.job.restart.max > 0 and not brief.timed
    return Survivors.of(brief.layout.world_size) if again else None


def _until_done(
    brief: Brief,
    survivors: Survivors | None,
    threads: int,
    on_message: OnMessage,
    on_attempt: Callable[[int], None],
    stop: Stop,
) -> dict[str, Any]:
    without_progress, reached = 0, None if brief.resume is None else open_manifest(brief.resume).step
    if survivors is not None:
        brief = replace(brief, alive=survivors.alive(brief.attempt, reached))
    while True:
        try:
            return _launch(brief, survivors, threads, on_message, stop)
        except PacelineError as error:
            most = brief.job.restart.max
            if brief.layout.world_size == 1 or error.exit_code not in RESTARTABLE or most == 0:
                raise
            newest = latest(brief.folder.checkpoints)
            saved = None if newest is None else open_manifest(newest).step
            alive = None if survivors is None else survivors.alive(brief.attempt, saved)
            step = alive.step if alive is not None and alive.step is not None else saved
            without_progress = without_progress + 1 if step == reached else 1
            if without_progress > most:
                raise _used_up(error, most) from error
            reached = step
            brief = replace(brief, attempt=brief.attempt + 1, resume=newest, alive=alive)
            row = _restart_row(brief, error, step or 0)
            _write(brief, row)
            on_message(row)
            on_attempt(brief.attempt)


def _restart_row(brief: Brief, error: PacelineError, step: int) -> dict[str, Any]:
    if brief.alive is not None and brief.alive.step is not None:
        source = f"memory, after step {step}"
    else:
        source = "the beginning" if brief.resume is None else brief.resume.name
    return {
        "kind": "event",
        "step": step,
        "attempt": brief.attempt,
        "time_s": round(time.time() - brief.started_unix_s, 4),
        "event": "restart",
        "detail": {"cause": error.message, "from": source},
    }


def _launch(
    brief: Brief, survivors: Survivors | None, threads: int, on_message: OnMessage, stop: Stop
) -> dict[str, Any]:
    hang_s = brief.job.restart.hang_timeout
    settings: dict[str, Any] = {
        "logs": brief.folder.logs,
        "threads_per_rank": threads,
        "timeout_s": hang_s * INNER_SHARE,
        "hang_timeout_s": hang_s,
        "on_message": lambda rank, row: on_message(row),
        "stop": stop,
        "attempt": brief.attempt,
    }
    if brief.layout.world_size == 1:
        return run_here(ENTRY, brief.payload(), **settings)[0]
    if survivors is not None:
        settings["before_end"] = survivors.settle
    return run_ranks(ENTRY, brief.payload(), world_size=brief.layout.world_size, **settings)[0]


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

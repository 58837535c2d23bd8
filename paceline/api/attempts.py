"""Starts the ranks of a run, and starts them again from the last checkpoint when one of them dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
            than ``restart.max`` times in a row without a new checkpoint between.
    """
    with Stopper(stop) as stopper:  # one around all attempts: no Ctrl-C is lost between them
        return _until_done(brief, threads, on_message, on_attempt, stopper)


def _until_done(
    brief: Brief, threads: int, on_message: OnMessage, on_attempt: Callable[[int], None], stop: Stop
) -> dict[str, Any]:
    without_progress = 0
    while True:
        try:
            return _launch(brief, threads, on_message, stop)
        except PacelineError as error:
            most = brief.job.restart.max
            if brief.layout.world_size == 1 or error.exit_code not in RESTARTABLE or most == 0:
                raise
            newest = latest(brief.folder.checkpoints)
            without_progress = without_progress + 1 if newest == brief.resume else 1
            if without_progress > most:
                raise _used_up(error, most) from error
            brief = replace(brief, attempt=brief.attempt + 1, resume=newest)
            row = {
                "kind": "event",
                "step": 0 if newest is None else open_manifest(newest).step,
                "attempt": brief.attempt,
                "time_s": round(time.time() - brief.started_unix_s, 4),
                "event": "restart",
                "detail": {
                    "cause": error.message,
                    "from": "the beginning" if newest is None else newest.name,
                },
            }
            _write(brief, row)
            on_message(row)
            on_attempt(brief.attempt)


def _launch(brief: Brief, threads: int, on_message: OnMessage, stop: Stop) -> dict[str, Any]:
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
        rule=f"at most restart.max = {many(most, 'restart')} in a row without a new checkpoint",
        use=error.use or "look at the ranks' logs: paceline logs last --rank 0",
        where=error.where,
    )

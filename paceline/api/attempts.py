"""Starts the ranks of a run, and starts them again when one of them dies: from memory, or from the last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.elastic import left_over
from paceline.api.surviving import Survivors
from paceline.launch.local import run_here, run_ranks
from paceline.launch.signals import Stop, Stopper
from paceline.ledger.metrics import MetricsWriter
from paceline.ledger.outcome import Exit, Failed, PacelineError
from paceline.ledger.plural import many
from paceline.recover.checkpoint import latest_good, open_manifest, passed_over
from paceline.recover.live.alive import MEMORY

if TYPE_CHECKING:
    from paceline.plan.layout import Layout
    from paceline.plan.model import Widths
    from paceline.recipes.brief import Brief
    from paceline.recover.live.alive import Alive

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
        self._rollbacks, self._went_back_at = 0, 0
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
                result = self._launch()
            except PacelineError as error:
                self._prepare_next(error)
                continue
            if result.get("rollback") is None:
                return result
            self._go_back(result["rollback"])

    def close(self) -> None:
        """Give back the memory in which ranks would have found their states."""
        if self._survivors is not None:
            self._survivors.close()

    def _prepare_next(self, error: PacelineError) -> None:
        brief, most = self._brief, self._brief.job.restart.max
        if brief.layout.world_size == 1 or error.exit_code not in RESTARTABLE or most == 0:
            raise error
        layout = self._next_layout()
        newest = self._newest()
        saved = None if newest is None else open_manifest(newest).step
        if error.key == MEMORY and self._survivors is not None:
            self._survivors.close()  # who goes on from it had no room: not tried again
            self._survivors = None
        alive = self._memory_for(layout.world_size, saved)
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
        detail = {"cause": error.message, "from": _source(self._brief, step or 0)}
        if layout != brief.layout:
            detail["layout"] = str(layout)
        self._tell("restart", step or 0, detail)

    def _newest(self) -> Path | None:
        """The newest checkpoint that is good; what is wrong with a newer one is told."""
        path, fault = latest_good(self._brief.folder.checkpoints)
        if fault is not None:
            self._on_message({"kind": "say", "field": "warn", "text": passed_over(path, fault)})
        return path

    def _memory_for(self, ranks: int, saved: int | None) -> Alive | None:
        """What the next attempt finds in memory; None where the system has no room for it: then a checkpoint serves."""
        if self._survivors is None:
            return None
        try:
            return self._survivors.alive(self._brief.attempt, saved, ranks)
        except OSError:
            self._survivors.close()
            self._survivors = None
            return None

    def _go_back(self, verdict: Mapping[str, Any]) -> None:
        """A rule goes back: the next attempt has the last checkpoint, and the data after the batch that it saw."""
        brief, failed = self._brief, int(verdict["failed"])
        newest = self._newest()
        step = 0 if newest is None else open_manifest(newest).step
        self._rollbacks = self._rollbacks + 1 if failed <= self._went_back_at else 1
        self._went_back_at = max(failed, self._went_back_at)
        if self._rollbacks > max(1, brief.job.restart.max):
            raise _back_in_vain(brief, verdict, self._rollbacks - 1)
        alive = None if self._survivors is None else self._survivors.afresh()
        self._reached = step
        self._brief = replace(
            brief,
            attempt=brief.attempt + 1,
            resume=newest,
            alive=alive,
            skip_to=None if verdict["position"] is None else (step, int(verdict["position"])),
        )
        left_out = "nothing" if verdict["position"] is None else f"the rows of {many(failed - step, 'step')}"
        self._tell(
            "restart",
            step,
            {
                "control": verdict["control"],
                "cause": f"{verdict['seen']} (step {failed})",
                "from": "the beginning" if newest is None else newest.name,
                "left out": left_out,
                "position": verdict["position"],
            },
        )

    def _tell(self, event: str, step: int, detail: dict[str, Any]) -> None:
        """A row of the attempt that begins, and word of it to whoever watches."""
        brief = self._brief
        row = {
            "kind": "event",
            "step": step,
            "attempt": brief.attempt,
            "time_s": round(time.time() - brief.started_unix_s, 4),
            "event": event,
            "detail": detail,
        }
        _write(brief, row)
        self._on_message(row)
        self._on_attempt(brief)

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


def _source(brief: Brief, step: int) -> str:
    if brief.alive is not None and brief.alive.step is not None:
        return f"memory, after step {step}"
    return "the beginning" if brief.resume is None else brief.resume.name


def _write(brief: Brief, row: dict[str, Any]) -> None:
    writer = MetricsWriter(brief.folder.metrics)
    writer.write(row)
    writer.close()


def _back_in_vain(brief: Brief, verdict: Mapping[str, Any], times: int) -> Failed:
    finite = verdict["signal"] != "nonfinite"
    return Failed(
        f"control {verdict['control']} went back {many(times, 'time')} without getting past step {verdict['failed']}",
        exit_code=Exit.CONTROL if finite else Exit.NONFINITE,
        key=f"control.{verdict['control']}",
        seen=f"{verdict['seen']}\n{verdict['origin']}".rstrip(),
        rule="other data did not help: it is not the batch",
        use=f"--set optimizer.lr={brief.job.optimizer.lr / 3:.1g}, or an earlier checkpoint: "
        f"paceline checkpoint list {brief.folder.path}",
    )


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

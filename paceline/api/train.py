"""``pl.train``: one real run, from the job to the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from paceline.api.attempts import run_attempts
from paceline.api.ground import Ground, settle
from paceline.api.jobs import Sets, load_job
from paceline.api.lines import PlainLines
from paceline.api.naming import names_in_repairs
from paceline.api.runs import Run, forget_stop, runs_root, stop_asked
from paceline.api.start import begin, brief_of, headings, refuse_other_data
from paceline.api.surroundings import environment
from paceline.api.target import (
    Target,
    find_old,
    find_target,
    refuse_allowing_nothing,
    refuse_past_the_end,
    split_job,
)
from paceline.launch.environment import refuse_engine_world
from paceline.launch.machine import refuse_platform
from paceline.ledger.folder import RunFolder, check_run_name, create
from paceline.ledger.lock import Lock
from paceline.ledger.outcome import Exit, Failed, PacelineError
from paceline.ledger.plural import many
from paceline.ledger.status import Heartbeat

if TYPE_CHECKING:
    from paceline.job import Job
    from paceline.plan.layout import Layout
    from paceline.recipes.brief import Brief

Row = dict[str, Any]


def train(
    job: Job | str | Path,
    *,
    layout: str | Layout = "auto",
    name: str | None = None,
    resume: bool = False,
    allow_change: Iterable[str] = (),
    set: Sets = (),
    on_row: Callable[[Row], bool | None] | None = None,
    on_message: Callable[[Row], None] | None = None,
) -> Run:
    """Train a job; returns when it is done, or stopped and saved (``Run.state`` is then ``preempted``).

    Args:
        job: a :class:`Job`, a job file, or a run; with ``resume`` also RUN@STEP, an earlier checkpoint of it.
        layout: ``auto`` = the job's ``layout.use``; on a resumed run, the layout that it has.
        name: of the run; default the job's ``run.name``.
        resume: go on with the newest run of this name, or start one if there is none.
        allow_change: keys that a resume may change although they change the mathematics.
        set: job keys and values on top, as ``--set``.
        on_row: sees each metrics row in the calling process; False stops the run, saved.
        on_message: sees everything that the console shows: rows, headings (``say``), events.

    Raises:
        Refused: before anything has started: the job, the data, the layout or the machine is not acceptable.
        Failed: what had started could not be finished; the run's status says so too.
    """
    refuse_platform()
    allowed = tuple(allow_change)
    refuse_allowing_nothing(allowed, resume)
    flags = f" --name {quote(name)}" if name is not None else ""
    with names_in_repairs(job, flags=flags) as names, ExitStack() as held:
        refuse_engine_world(environment())
        job, step = split_job(job, resume=resume)
        loaded = load_job(job, set)
        run_name = check_run_name(name if name is not None else loaded.job.run.name or "run")
        root = runs_root(loaded.job.run.root if "run.root" in loaded.origins else None)
        board = _Board(on_row, on_message, loaded.job.track.every)
        old = find_old(job, root, run_name) if resume else None
        if old is not None:
            names.run = old
            held.enter_context(Lock(old))  # before anything of it is read, let alone written
        target = find_target(job, loaded, old, allowed, step)
        wanted = _wanted(str(layout), target)
        _warm_up(wanted)
        ground = settle(target.job, wanted, board.say, board.preparing, loaded.where)
        refuse_past_the_end(target, ground.steps)
        refuse_other_data(target, ground)
        folder = names.run = old or create(root, run_name)
        if old is None:
            held.enter_context(Lock(folder))
        started_unix_s = begin(folder, target, loaded, ground)
        board.open(folder)
        headings(board.say, folder, target, ground)
        return _run(brief_of(folder, started_unix_s, target, ground), ground, board)


def _wanted(layout: str, target: Target) -> str:
    if layout != "auto":
        return layout
    return target.layout if target.resumes and target.layout else target.job.layout.use


def _warm_up(layout: str) -> None:
    """Where several processes are sure to be needed, torch is imported for them while the data is prepared."""
    from paceline.launch.forkserver import warm
    from paceline.plan.layout import Layout

    asked = Layout.parse(layout)
    if not asked.open and asked.world_size > 1:
        warm(["paceline.recipes.rank"])


def _run(brief: Brief, ground: Ground, board: _Board) -> Run:
    folder = brief.folder
    with Heartbeat(folder.path) as heart:
        board.heart = heart
        heart.beat(state="running", attempt=brief.attempt, layout=str(brief.layout))
        try:
            result = run_attempts(
                brief,
                widths=ground.plan.facts.work.widths,
                threads=ground.threads_per_rank,
                on_message=board.message,
                on_attempt=lambda next_one: _note(heart, next_one),
                stop=board.stop,
            )
            if result["control"] is not None:
                raise _stopped_by(result["control"], folder, result["step"])
        except PacelineError as error:
            with suppress(OSError):  # the error is what the caller must see, whatever became of the folder
                heart.end("failed", error.exit_code, error.message)
            raise
        except (
            BaseException
        ) as error:  # a second Ctrl-C, or a fault of our own: the status must not say `running`
            with suppress(OSError):
                heart.end("failed", _code_of(error), f"{type(error).__name__}: {error}")
            raise
        else:
            _end(heart, result)
        finally:
            board.heart = None
            board.close(folder)
    return Run(folder)


def _stopped_by(verdict: Row, folder: RunFolder, step: int) -> Failed:
    """The error (40) of a run that a rule on finished steps has ended, saved."""
    name = verdict["control"]
    return Failed(
        f"stopped by control {name}: {verdict['seen']}",
        exit_code=Exit.CONTROL,
        key=f"control.{name}",
        seen=verdict["seen"],
        rule=f"a rule that says stop; {verdict['owner']} answers for it",
        allowed=f"the weights of step {step} are saved",
        use=f"paceline train {folder.path} --resume --set control.{name}.action=alert",
    )


def _end(heart: Heartbeat, result: Row) -> None:
    heart.beat(step=result["step"], steps=result["steps"])
    if result["stop"]:
        heart.end(
            "preempted", Exit.PREEMPTED, f"stopped by {result['stop']} after step {result['step']}, saved"
        )
    else:
        heart.end("done", Exit.DONE, many(result["step"], "step"))


def _code_of(error: BaseException) -> int:
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return 130 if isinstance(error, KeyboardInterrupt) else int(Exit.FAULT)


def _note(heart: Heartbeat, brief: Brief) -> None:
    heart.beat(attempt=brief.attempt, layout=str(brief.layout))


class _Board:
    """Messages of a run: to ``logs/console.log``, to the caller, and into the heartbeat."""

    def __init__(
        self,
        on_row: Callable[[Row], bool | None] | None,
        on_message: Callable[[Row], None] | None,
        every: Any,
    ) -> None:
        self._on_row, self._on_message = on_row, on_message
        self._lines = PlainLines(every=(every.kind, float(every.value or 0)))
        self._early: list[str] = []
        self._log: Path | None = None
        self._folder: RunFolder | None = None
        self._halt = False
        self._asked_s = 0.0
        self.heart: Heartbeat | None = None

    def open(self, folder: RunFolder) -> None:
        """The folder exists: what was said before goes into its log, an old request to stop is forgotten."""
        forget_stop(folder)
        self._folder, self._log = folder, folder.console_log
        for line in self._early:
            self._write(line)

    def say(self, field: str, text: str) -> None:
        """One heading line."""
        self.message({"kind": "say", "field": field, "text": text})

    def preparing(self, progress: Row) -> None:
        """How far the preparation of the data is; for the caller only."""
        if self._on_message is not None:
            self._on_message({"kind": "preparing", **progress})

    def message(self, row: Row) -> None:
        """One message of a rank, or of the launcher."""
        line = self._lines.line(row)
        if line is not None:
            self._write(line)
        if self._on_message is not None:
            self._on_message(row)
        if self.heart is not None and row.get("kind") in ("start", "train"):
            with suppress(
                OSError
            ):  # a full disk or a folder that is gone is told by who needs it: the next save
                self.heart.beat(step=int(row["step"]), steps=row.get("steps"))
        rows = ("train", "eval", "event", "round")
        if row.get("kind") in rows and self._on_row is not None and self._on_row(row) is False:
            self._halt = True

    def stop(self) -> str | None:
        """Polled often: whether somebody asked the run to stop."""
        if self._halt:
            return "on_row"
        now_s = time.monotonic()
        if self._folder is not None and now_s - self._asked_s >= 0.5:
            self._asked_s = now_s
            if stop_asked(self._folder):
                return "stop command"
        return None

    def close(self, folder: RunFolder) -> None:
        """The report is written whatever the end; that it could not be is told and ends nothing."""
        with suppress(OSError):
            forget_stop(folder)
        try:
            Run(folder).report()
        except Exception as error:
            self.say("warn", f"report.html was not written: {type(error).__name__}: {error}")

    def _write(self, line: str) -> None:
        if self._log is None:
            self._early.append(line)
            return
        with suppress(OSError), open(self._log, "a", encoding="utf-8") as log:  # a line less ends no run
            log.write(line + "\n")

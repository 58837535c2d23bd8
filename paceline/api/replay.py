"""``paceline replay``: a step of a run again, from its checkpoint, batch and seeds, on one device or any layout.

The steps between the checkpoint and the one that is asked for are done again too. Nothing is saved, and the run is not
changed but for ``evidence/replay-STEP.json``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from paceline.api.ground import Ground, settle
from paceline.api.kept import kept_job
from paceline.api.replayed import Replay, Replayed, judged
from paceline.api.runs import Run
from paceline.api.start import brief_of, refuse_other_data
from paceline.api.target import Target
from paceline.ledger.atomic import write_json
from paceline.ledger.folder import create
from paceline.ledger.metrics import counted_rows
from paceline.ledger.outcome import Exit, PacelineError, Preempted, Refused

if TYPE_CHECKING:
    from paceline.recipes.brief import Brief

Say = Callable[[str, str], None]
STOPPED_BY_A_RULE = (Exit.NONFINITE, Exit.CONTROL)


@dataclass(frozen=True)
class _Source:
    """From where: a checkpoint and its step (None and 0: the beginning), and the data's position if a rule moved it."""

    path: Path | None
    step: int
    skip_to: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        return "the beginning" if self.path is None else self.path.name


def replay(
    run: Run | str | Path = "last",
    *,
    step: int | None = None,
    layout: str = "single",
    say: Say = lambda field, text: None,
) -> Replay:
    """Do a step of a run again and compare it with the run's own rows.

    Args:
        run: a run, by name or folder.
        step: which; None = the last one that the run has a row of.
        layout: on which it is done again; ``run`` = that of the run.
        say: headings for the console.

    Returns:
        The steps, each recorded and replayed; ``outcome`` says whether the last one came out the same: the same bits
        where the layout is the run's on a CPU, else within :data:`~paceline.api.replayed.TOLERANCE`.

    Raises:
        Refused: (2) the run has no such step; (54) the data are others now; whatever ``train`` refuses of the job.
        Failed: (53) the checkpoint is damaged; whatever ends a rank beside a rule.
    """
    found = run if isinstance(run, Run) else Run(run)
    recorded = {int(row["step"]): row for row in counted_rows(found.folder.metrics, "train")}
    wanted = _wanted(found, step, recorded)
    source = _source(found, wanted)
    used = _layout_of(found, wanted, recorded)
    target = Target(
        found.folder, kept_job(found.folder, _job(found)), checkpoint=source.path, step=source.step
    )
    ground = settle(
        target.job, used if layout == "run" else layout, say, lambda row: None, str(found.folder.job_toml)
    )
    refuse_other_data(target, ground)
    say("replay", f"{found.name} step {wanted} from {source.name} on {ground.plan.layout} (the run: {used})")
    rows, ended = _again(brief_of(found.folder, time.time(), target, ground), ground, source, wanted)
    steps = [
        Replayed.of(number, recorded.get(number, {}), rows.get(number, {}))
        for number in range(source.step + 1, wanted + 1)
    ]
    told = judged(
        found.name,
        wanted,
        str(ground.plan.layout),
        used,
        ground.job.train.precision,
        source.name,
        steps,
        ended,
    )
    write_json(found.folder.evidence / f"replay-{wanted}.json", {"schema": 1, **told.to_dict()})
    return told


def _job(run: Run) -> Any:
    from paceline.job import Job

    return Job.load(run.folder.job_toml)


def _wanted(run: Run, step: int | None, recorded: dict[int, dict[str, Any]]) -> int:
    last = max(recorded, default=0)
    wanted = last if step is None else step
    if not recorded or wanted < 1 or wanted > last + 1:
        raise Refused(
            f"{run.name} has no step {wanted}",
            exit_code=Exit.USAGE,
            key="--step",
            seen=f"--step {wanted}" if step is not None else "no finished step",
            rule="a step that a run has done, or broke in, is done again",
            allowed=f"1 to {last + 1}" if recorded else "",
            use=f"paceline replay {run.name} --step {last}" if recorded else f"paceline logs {run.name}",
            where=str(run.folder.metrics),
        )
    return wanted


def _source(run: Run, wanted: int) -> _Source:
    """The newest checkpoint before the step; its bytes are checked where they are read."""
    from paceline.recover.checkpoint import open_manifest
    from paceline.recover.steps import published

    before = [(number, path) for number, path in published(run.folder.checkpoints) if number < wanted]
    if not before:
        return _Source(None, 0, _moved(run, 0))
    number, path = max(before)
    open_manifest(path)
    return _Source(path, number, _moved(run, number))


def _moved(run: Run, step: int) -> tuple[int, int] | None:
    """Where the data went on after a rule had gone back to this step, if one did."""
    found = None
    for row in counted_rows(run.folder.metrics, "event"):
        detail = row.get("detail")
        if row.get("event") == "restart" and isinstance(detail, dict) and row["step"] == step:
            found = detail.get("position", found)
    return None if found is None else (step, int(found))


def _layout_of(run: Run, step: int, recorded: dict[int, dict[str, Any]]) -> str:
    """The layout of the attempt that did the step."""
    status = run.status
    attempt = recorded.get(step, recorded.get(step - 1, {})).get("attempt", 0)
    return status.layouts.get(str(attempt), status.layout)


def _again(
    brief: Brief, ground: Ground, source: _Source, until: int
) -> tuple[dict[int, dict[str, Any]], str]:
    """Rows by step, and what a rule said where it ended the replay."""
    from paceline.api.attempts import ENTRY, INNER_SHARE
    from paceline.launch.local import run_ranks
    from paceline.launch.signals import Stopper

    rows: dict[int, dict[str, Any]] = {}

    def heard(rank: int, row: dict[str, Any]) -> None:
        if row.get("kind") == "train":
            rows[int(row["step"])] = row

    hang_s = ground.job.restart.hang_timeout
    with TemporaryDirectory(prefix="paceline-replay-") as scratch, Stopper() as stopper:
        folder = create(Path(scratch), "replay")
        brief = replace(
            brief,
            folder=folder,
            attempt=0,
            resume=source.path,
            skip_to=source.skip_to,
            timed=True,
            until=until,
        )
        try:
            results = run_ranks(
                ENTRY,
                brief.payload(),
                world_size=brief.layout.world_size,
                logs=folder.logs,
                threads_per_rank=ground.threads_of(brief.layout.world_size),
                timeout_s=hang_s * INNER_SHARE,
                hang_timeout_s=hang_s,
                on_message=heard,
                stop=stopper,
            )
        except Preempted as error:
            raise SystemExit(143 if "SIGTERM" in error.message else 130) from error
        except PacelineError as error:
            if error.exit_code not in STOPPED_BY_A_RULE:
                raise
            return rows, f"{error.message}\n{error.seen}"
        if stopper() is not None:
            raise SystemExit(143 if stopper() == "SIGTERM" else 130)
    back = results[0].get("rollback")
    return rows, "" if back is None else f"{back['seen']} at step {back['failed']}\n{back['origin']}".rstrip()

"""Which run a ``train`` is about: a new folder, or the newest of its name and the checkpoint to go on from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.api.jobs import run_of
from paceline.job import Job, Loaded
from paceline.job.changes import Change, judge_resume
from paceline.ledger.folder import RunFolder, newest_of, split_step
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.status import Status


@dataclass(frozen=True)
class Target:
    """An old run to go on with, or (``folder`` None) a new one to be made.

    ``checkpoint`` is None where the run has saved nothing yet: it then begins again, in the same folder. ``step`` is
    the checkpoint's. ``passed_over`` tells of a newer one that is damaged, "" where there is none.
    """

    folder: RunFolder | None
    job: Job
    attempt: int = 0
    checkpoint: Path | None = None
    layout: str = ""
    started_unix_s: float = 0.0
    changes: tuple[Change, ...] = ()
    step: int = 0
    passed_over: str = ""

    @property
    def resumes(self) -> bool:
        """Whether an old run goes on."""
        return self.folder is not None


def find_old(word: object, root: Path, name: str) -> RunFolder | None:
    """The run that ``--resume`` means: JOB itself where it is a run, else the newest of this name; None = none yet."""
    given = None if isinstance(word, Job) else run_of(str(word))
    return given.folder if given is not None else newest_of(root, name)


def split_job(word: Job | str | Path, *, resume: bool) -> tuple[Job | str | Path, int | None]:
    """JOB, and the step of ``RUN@STEP`` (None without one), from which a resume then goes on.

    Raises:
        Refused: 2 for a step where nothing is resumed: a job has none.
    """
    if isinstance(word, Job) or Path(word).exists():
        return word, None
    run, step = split_step(str(word))
    if step is not None and not resume:
        raise Refused(
            f"{word} is a checkpoint, not a job",
            exit_code=Exit.USAGE,
            key="JOB",
            seen=str(word),
            rule="a step is where --resume goes on; a new run begins at its beginning",
            use=f"paceline train {word} --resume, or paceline train {run}",
        )
    return run, step


def find_target(
    word: object,
    loaded: Loaded,
    folder: RunFolder | None,
    allow_change: Iterable[str],
    step: int | None = None,
) -> Target:
    """What to do with ``folder``, decided by the rules of interface §1. The caller holds its lock.

    Args:
        word: JOB as given; a run's own folder must have something to resume.
        loaded: the job, values and origins.
        folder: the old run; None = a new one is to be made.
        allow_change: keys that may differ although they change the mathematics.
        step: the checkpoint to go on from; None = the latest.

    Raises:
        Refused: 52 when JOB is a run without a checkpoint, or without that one; 54 when the job may not differ so.
    """
    if folder is None:
        return Target(None, loaded.job)
    must = not isinstance(word, Job) and run_of(str(word)) is not None
    return _resumed(folder, loaded, tuple(allow_change), step, must=must)


def refuse_allowing_nothing(allowed: Sequence[str], resume: bool) -> None:
    """Refuse (2) ``--allow-change`` where nothing is resumed: it would be ignored in silence."""
    if resume or not allowed:
        return
    flags = " ".join(f"--allow-change {key}" for key in allowed)
    raise Refused(
        "--allow-change without --resume",
        exit_code=Exit.USAGE,
        key="--allow-change",
        seen=flags,
        rule="a new run has nothing that a change must be allowed against",
        use=f"--resume {flags}, or leave it out",
    )


def refuse_past_the_end(target: Target, steps: int) -> None:
    """Refuse (54) to resume at a step after the job's last, before anything of the run is written."""
    if target.folder is None or target.checkpoint is None:
        return
    at = target.step
    if at <= steps or any(c.key == "train.global_batch_size" for c in target.changes):
        return
    raise Refused(
        "the checkpoint is past the end of the job",
        exit_code=Exit.MISMATCH,
        key="train.steps",
        seen=f"checkpoint of step {at}, the job ends at {steps}",
        rule="a resumed run goes on from its checkpoint",
        use=f"--set train.steps={at + 1} or more",
        where=str(target.checkpoint),
    )


def _resumed(
    folder: RunFolder, loaded: Loaded, allow_change: tuple[str, ...], step: int | None, *, must: bool
) -> Target:
    from paceline.recover.checkpoint import latest_good, of_step, open_manifest, passed_over

    status = folder.read_status() or Status()
    checkpoint, fault = (
        latest_good(folder.checkpoints) if step is None else (of_step(folder.checkpoints, step), None)
    )
    if checkpoint is None and must:
        raise Refused(
            f"{folder.name} has no checkpoint " + ("to go on from" if step is None else f"of step {step}"),
            exit_code=Exit.NOTHING_TO_RESUME,
            key="--resume",
            seen=f"state {status.state}, step {status.step}, no complete checkpoint",
            rule="a run given as JOB goes on from its latest checkpoint",
            use=f"paceline train {folder.job_toml}" + (f" --layout {status.layout}" if status.layout else ""),
            where=str(folder.checkpoints),
        )
    old = Job.load(folder.job_toml)
    changes = judge_resume(old, loaded.job, allow_change)
    return Target(
        folder,
        loaded.job,
        attempt=status.attempt + 1,
        checkpoint=checkpoint,
        layout=status.layout,
        started_unix_s=status.started_s,
        changes=tuple(changes),
        step=0 if checkpoint is None else open_manifest(checkpoint).step,
        passed_over="" if fault is None else passed_over(checkpoint, fault),
    )

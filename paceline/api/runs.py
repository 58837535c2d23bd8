"""A run as an object, read from its folder. Never imports torch; reading never changes a run.

``Run("last").metrics()["loss"]`` is a numpy array; rows of steps that a restart repeated are counted once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.ledger.folder import RunFolder, all_runs, find, find_all, read_manifest, split_step
from paceline.ledger.metrics import columns, last_row
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.status import LIVE_STATES, Status

if TYPE_CHECKING:
    import numpy as np

    from paceline.api.checkpoints import Checkpoint
    from paceline.job import Job
    from paceline.plan.layout import Layout

STOP_FILE = "stop"


class Run:
    """One run.

    Args:
        run: a folder, a run's name under ``root``, or ``last``.
        root: the folder of runs; default ``PACELINE_RUNS``, else ``runs``.

    Raises:
        Refused: (2) there is no such run; the nearest names are given.
    """

    def __init__(self, run: str | Path | RunFolder = "last", *, root: str | Path | None = None) -> None:
        folder = run if isinstance(run, RunFolder) else find(run, runs_root(root))
        self.folder = folder

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.path.resolve() == other.path.resolve()

    def __hash__(self) -> int:
        return hash(self.path.resolve())

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def status(self) -> Status:
        """What ``status.json`` says; a run whose status cannot be read shows as failed."""
        return self.folder.read_status() or Status(state="failed", message="status.json cannot be read")

    @property
    def state(self) -> str:
        """preparing running stopping done preempted failed, or lost: it says that it lives and is gone."""
        state = self.folder.shown_state()
        return "failed" if state == "unknown" else state

    @property
    def exit_code(self) -> int | None:
        return self.status.exit_code

    @property
    def layout(self) -> Layout:
        """What it trains with, whatever its job asked for; ``auto`` where nothing was decided."""
        from paceline.plan.layout import Layout

        return Layout.parse(self.status.layout or _planned(self.folder) or "auto")

    @property
    def job(self) -> Job:
        """The resolved job that the run trains."""
        from paceline.job import Job

        return Job.load(self.folder.job_toml)

    @property
    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.folder)

    def metrics(self, kind: str = "train") -> dict[str, np.ndarray]:
        """The rows of ``metrics.jsonl`` of one kind as arrays of equal length, keys as in interface §7."""
        import numpy as np

        return {name: np.asarray(values) for name, values in columns(self.folder.metrics, kind).items()}

    def last(self, kind: str = "train") -> dict[str, Any]:
        """The newest row of a kind, read from the end of the file; empty when there is none."""
        return last_row(self.folder.metrics, kind) or {}

    def checkpoints(self) -> list[Checkpoint]:
        """Complete checkpoints, oldest first."""
        from paceline.api.checkpoints import checkpoints_of

        return [found for found in checkpoints_of(self.folder) if found.complete]

    def stop(self) -> None:
        """Asks the run to finish its step, save and stop; works from any host that sees the folder.

        Raises:
            Refused: (2) it is not running.
        """
        state = self.state
        if state not in LIVE_STATES:
            raise Refused(
                f"{self.name} is not running",
                exit_code=Exit.USAGE,
                key="RUN",
                seen=f"state {state}",
                rule="only a run that is preparing, running or stopping can be stopped",
                use="paceline runs",
            )
        (self.path / STOP_FILE).touch()

    def wait(self, most_s: float) -> str:
        """The state when the run has ended, or after ``most_s`` seconds."""
        until = time.monotonic() + most_s
        while self.state in LIVE_STATES and time.monotonic() < until:
            time.sleep(0.1)
        return self.state

    def report(self) -> Path:
        """Writes ``report.html`` anew and returns its path."""
        from paceline.evidence.report import write_report

        return write_report(self.folder)

    def delete(self) -> int:
        """Removes the run; returns the bytes freed. A run that a living process holds is refused (56)."""
        return self.folder.delete()


def _planned(folder: RunFolder) -> str:
    from paceline.ledger.records import read

    decision = (read(folder, 1) or {}).get("decision")
    return str(decision.get("layout", "")) if isinstance(decision, dict) else ""


def runs(root: str | Path | None = None) -> list[Run]:
    """Every run under ``root`` (default ``PACELINE_RUNS``, else ``runs``), the newest first."""
    return [Run(folder) for folder in all_runs(runs_root(root))]


def find_runs(words: Iterable[str], root: str | Path | None = None) -> list[Run]:
    """The runs that ``words`` name; a word may be a pattern (``'lr-*'``)."""
    return [Run(folder) for folder in find_all(words, runs_root(root))]


def find_checkpoint(word: str | Path, root: str | Path | None = None) -> tuple[Run | None, Path]:
    """``RUN`` (the step that ``latest`` names), ``RUN@STEP`` or a checkpoint's folder → (its run, the folder).

    A damaged checkpoint never makes an older one answer in its place.

    Raises:
        Refused: (2) no such run, or a folder that is no checkpoint; (52) nothing saved, or not of that step.
        Failed: (53) what ``latest`` names is damaged; the error names the newest older step that is good.
    """
    path = Path(word)
    if path.is_dir() and not RunFolder(path).is_run():
        return None, _checked_folder(path)
    from paceline.recover.checkpoint import latest, of_step

    name, step = split_step(str(word))
    if step is not None and path.is_dir():
        name, step = str(word), None  # the folder of a run that somebody renamed so
    run = Run(name, root=root)
    folder = run.folder.checkpoints
    found = latest(folder) if step is None else of_step(folder, step)
    if found is not None:
        return run, found
    good = run.checkpoints()
    raise Refused(
        f"{run.name} has no checkpoint" + (f" of step {step}" if step is not None else ""),
        exit_code=Exit.NOTHING_TO_RESUME,
        key="RUN",
        seen=str(word),
        rule="RUN@STEP names a complete checkpoint of the run",
        allowed=", ".join(f"{run.name}@{c.step}" for c in good),
        use=f"{run.name}@{good[-1].step}" if good else f"paceline runs ({run.name} is {run.state})",
    )


def _checked_folder(path: Path) -> Path:
    """A checkpoint's folder is known by its name or its manifest; another folder is not a damaged checkpoint."""
    from paceline.recover.manifest import NAME, step_of

    if step_of(path.resolve().name) is None and not (path / NAME).exists():
        raise Refused(
            f"{path} is neither a run nor a checkpoint",
            exit_code=Exit.USAGE,
            key="RUN",
            seen=str(path),
            rule=f"a run has a status.json that Paceline wrote, a checkpoint a {NAME}",
            use="paceline runs",
        )
    return path


def runs_root(root: str | Path | None = None) -> Path:
    """The folder of runs: ``root``, else ``PACELINE_RUNS``, else ``runs``."""
    if root is not None:
        return Path(root)
    from paceline.api.surroundings import runs_folder

    return runs_folder()


def stop_asked(folder: RunFolder) -> bool:
    """Whether somebody asked this run to stop (``paceline runs stop``, ``Run.stop``). One ``stat``."""
    return (folder.path / STOP_FILE).exists()


def forget_stop(folder: RunFolder) -> None:
    """Removes the request, before a run starts or is resumed."""
    (folder.path / STOP_FILE).unlink(missing_ok=True)

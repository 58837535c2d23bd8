"""What killed processes left behind: stale locks, half-written folders, runs that only seem to live."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.api.runs import Run, runs, runs_root
from paceline.ledger.lock import Lock


@dataclass(frozen=True)
class Leftover:
    """One thing that nobody owns any more."""

    path: Path
    says: str
    use: str


def leftovers(root: str | Path | None = None) -> list[Leftover]:
    """Leftovers under the run root; nothing is removed."""
    folder = runs_root(root)
    found = list(_half_deleted(folder))
    for run in runs(root):
        found += _of_run(run)
    return found


def _half_deleted(root: Path) -> Iterator[Leftover]:
    for path in sorted(root.glob(".*.deleting")):
        yield Leftover(path, f"{path}: a deletion that was interrupted", f"rm -r {path}")


def _of_run(run: Run) -> Iterator[Leftover]:
    if run.state == "lost":
        says = f"{run.path}: says {run.status.state}, but its process {run.status.pid} is gone"
        yield Leftover(
            run.path, says, f"paceline train {run.path} --resume, or paceline runs delete {run.path} --yes"
        )
    elif Lock(run.folder).is_stale():
        yield Leftover(
            run.folder.lock, f"{run.folder.lock}: its process is gone", "nothing: the next run takes it over"
        )
    for path in sorted(run.folder.checkpoints.glob(".*")):
        yield Leftover(path, f"{path}: a checkpoint that was not finished", f"rm -r {path}")

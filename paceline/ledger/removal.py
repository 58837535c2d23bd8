"""Deletes a run: it disappears by one rename, then its files go. Needs no free byte on the disk.

Nothing is written, since a full disk is why runs are deleted. The lock is looked at before the rename and
after it: who took it between the two gets the run back.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol

from paceline.ledger import recognise
from paceline.ledger.lock import Lock
from paceline.ledger.outcome import Exit, Failed, Refused


class Removable(Protocol):
    """A run folder."""

    @property
    def path(self) -> Path: ...
    @property
    def name(self) -> str: ...
    @property
    def lock(self) -> Path: ...
    def disk_bytes(self) -> int: ...


class _Moved:
    """The same run under the name that it is deleted by."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.lock = name, path / "lock"


def delete(folder: Removable) -> int:
    """Removes the run and returns the bytes freed.

    Raises:
        Refused: (2) it is not a run, or holds things that are not a run's; (56) a living process holds it.
        Failed: (55) the file system does not let it go.
    """
    _check(folder)
    Lock(folder).refuse_if_held()
    freed = folder.disk_bytes()
    name, path = folder.name, folder.path
    try:
        doomed = _renamed(path)
    except OSError as error:
        raise _kept(path, error) from error
    try:
        Lock(_Moved(name, doomed)).refuse_if_held()
    except Refused:
        os.rename(doomed, path)
        raise
    try:
        shutil.rmtree(doomed)
    except OSError as error:
        raise _kept(doomed, error) from error
    return freed


def _renamed(path: Path) -> Path:
    """Under a hidden name beside it: half a run is never listed."""
    for number in range(1, 1000):
        doomed = path.with_name(f".{path.name}{'' if number == 1 else f'-{number}'}.deleting")
        if not os.path.lexists(doomed):  # else an earlier deletion was interrupted
            os.rename(path, doomed)
            return doomed
    raise FileExistsError(f"{doomed} and a thousand like it are there already")


def _check(folder: Removable) -> None:
    path = folder.path
    if path.name in ("", "..") or path.is_symlink():
        raise _refused(
            path,
            "`.`, `..`, a root or a link",
            "a run is deleted by its own name, not through . or .. or a link",
        )
    if not recognise.is_ours(path):
        raise _refused(
            path,
            "no status.json and no manifest.json that Paceline wrote",
            "only a folder that a status.json or manifest.json of schema 1 makes a run is deleted; a job.toml "
            "does not",
        )
    inside = [entry.name for entry in _folders(path) if recognise.is_run(entry)]
    if inside:
        raise _refused(path, f"runs inside it: {', '.join(inside[:3])}", "a folder of runs is not a run")
    others = recognise.strangers(path)
    if others:
        # What somebody put there (notes, a repository) is in no other place, and deleting cannot be undone.
        raise _refused(
            path,
            f"{', '.join(others[:5])}{' …' if len(others) > 5 else ''} in it",
            "a run is deleted only when everything in its folder is a run's own",
            f"move {others[0]} out of {path} first",
        )


def _folders(path: Path) -> list[Path]:
    return [entry for entry in sorted(path.iterdir()) if entry.is_dir() and not entry.is_symlink()]


def _refused(path: Path, seen: str, rule: str, use: str = "paceline runs") -> Refused:
    return Refused(
        f"{path} is not deleted", exit_code=Exit.USAGE, key="RUN", seen=f"{path}: {seen}", rule=rule, use=use
    )


def _kept(path: Path, error: OSError) -> Failed:
    return Failed(
        f"{path} could not be deleted whole",
        exit_code=Exit.STORE,
        key="RUN",
        seen=str(error),
        rule="deleting a run needs permission to write in its folder and in the one around it",
        use=f"ls -ld {path} {path.parent}",
        where=str(path),
    )

"""The checkpoints folder: which names mean what, what ``latest`` says, what may be deleted.

    step-00000200              complete and verified; appears by one rename
    latest                     the step to resume from and its manifest's hash; written last
    .step-00000200.tmp-1       a save by attempt 1 that is going on, or was killed
    .step-00000200.old-1       the step being replaced; what ``latest`` means until that is written
    .step-00000200.gone-1      being deleted
    .step-00000200.meet-1-…    where the writers of a save going on meet

*Latest is a name and a hash*: a run that saves a step again replaces a folder that ``latest`` names. The
hash says which of the two is meant at every instant, so a kill between the renames loses nothing. No torch.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from paceline.ledger import atomic, process
from paceline.ledger.outcome import Exit, Failed, Refused
from paceline.recover import manifest
from paceline.recover.container import Damaged, open_regular

LATEST = "latest"
MARKER = "saving.json"
_HIDDEN = re.compile(r"\.(step-[0-9]{8,18})\.(tmp|old|gone|meet)-(.+)")
_LATEST = re.compile(r"(step-[0-9]{8,18}) ([0-9a-f]{32})\n")


def hidden(folder: Path, step: int, kind: str, attempt: int | str) -> Path:
    """The path of a step that is not published: kind ``tmp``, ``old``, ``gone`` or ``meet``."""
    return folder / f".{manifest.step_name(step)}.{kind}-{attempt}"


def published(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every step folder by number; its content is not looked at."""
    found = []
    if folder.is_dir():
        for path in folder.iterdir():
            step = manifest.step_of(path.name)
            if step is not None and path.is_dir() and not path.is_symlink():
                found.append((step, path))
    return sorted(found)


def read_latest(folder: Path) -> tuple[str, str] | None:
    """(step folder's name, manifest hash) that ``latest`` holds; None without one. Raises Damaged for other
    text."""
    path = folder / LATEST
    if not os.path.lexists(path):
        return None
    with os.fdopen(open_regular(path), "rb") as file:
        found = _LATEST.fullmatch(file.read(200).decode("utf-8", "replace"))
    if not found:
        raise Damaged("does not hold a step's name and a hash")
    return found[1], found[2]


def write_latest(folder: Path, step: int, own_hash: str) -> None:
    """Point ``latest`` at a step that is complete and verified."""
    atomic.write_text(folder / LATEST, f"{manifest.step_name(step)} {own_hash}\n")


def meant(folder: Path, name: str, own_hash: str) -> Path | None:
    """The folder with this manifest hash under this name: published, or moved aside by a save that was
    killed."""
    aside = [p for p in _hidden_folders(folder, "old") if _step_part(p) == name]
    for path in (folder / name, *aside):
        if hash_of(path) == own_hash:
            return path
    return None


def hash_of(path: Path) -> str:
    """The hash in a folder's manifest; empty when there is no readable manifest."""
    try:
        return "" if path.is_symlink() else manifest.read(path, sizes=False).hash
    except (Damaged, Refused):
        return ""


def clear_leftovers(folder: Path, *, attempt: int, own: Path) -> None:
    """Remove what killed saves and deletions left behind; never the folder of a save that is going on."""
    for path in (*folder.glob(f".{LATEST}.*"), *folder.glob(".probe-*")):
        path.unlink(missing_ok=True)
    sweep(folder)
    for path in _hidden_folders(folder, "meet"):
        remove(path)
    for path in _hidden_folders(folder, "tmp"):
        if path == own or not _living(path, attempt):
            remove(path)
    try:
        named = read_latest(folder)
    except Damaged:
        return  # what is set aside may be all that is good
    for path in _hidden_folders(folder, "old"):
        home = folder / _step_part(path)
        means = named is not None and named == (home.name, hash_of(path)) and hash_of(home) != named[1]
        if not home.exists() and (means or named is None or named[0] != home.name):
            os.rename(path, home)  # killed between two renames
        elif not means:
            remove(path)


def _living(path: Path, attempt: int) -> bool:
    """Is the save that writes here still going on? Another host's is, unless it is of an earlier attempt."""
    row = atomic.read_json_or(path / MARKER, None)
    if not isinstance(row, Mapping):
        return False
    try:
        if row.get("host") == process.host():
            pid = int(row["pid"])
            return pid != os.getpid() and process.is_alive(pid, str(row.get("started", "")))
        return int(row["attempt"]) >= attempt
    except (KeyError, TypeError, ValueError):
        return False


def mark(path: Path, attempt: int) -> None:
    """Say in a save's folder whose it is."""
    pid = os.getpid()
    row = {
        "schema": 1,
        "host": process.host(),
        "pid": pid,
        "started": process.start_time(pid),
        "attempt": attempt,
    }
    atomic.write_json(path / MARKER, row)


def publish(
    folder: Path, temp: Path, step: int, own_hash: str, attempt: int, *, to_latest: bool = True
) -> None:
    """Give a complete, verified save its name, then write ``latest``. A step of this number is replaced.

    Args:
        to_latest: False where an older step is written anew: ``latest`` goes on naming the newer one, and the step
            that is replaced can be put back until its place is taken.
    """
    final = folder / manifest.step_name(step)
    try:
        named = read_latest(folder)
    except Damaged:
        named = None
    replaced: Path | None = None
    if final.exists():
        kept = named == (final.name, hash_of(final))
        replaced = hidden(folder, step, "old" if kept or not to_latest else "gone", attempt)
        os.rename(final, replaced)
    try:
        os.rename(temp, final)
    except OSError:
        if replaced is not None:
            os.rename(replaced, final)
        raise
    atomic.sync_folder(folder)
    if to_latest:
        write_latest(folder, step, own_hash)
    for path in _hidden_folders(folder, "old"):
        remove(path)
    if replaced is not None:
        remove(replaced)


def prune(folder: Path, *, run_id: str, keep: int, keep_every: int | None, attempt: int) -> list[int]:
    """Put this run's steps beyond the newest ``keep`` aside, to be deleted by :func:`sweep`, and return them.

    Kept besides: what ``latest`` names, each multiple of ``keep_every``, and whatever is not readably of
    this run.
    """
    named = read_latest(folder)
    mine = [(s, p) for s, p in published(folder) if _run_of(p) == run_id]
    dropped = []
    for step, path in mine[: -max(keep, 1)]:
        if (named is not None and path.name == named[0]) or (keep_every and step % keep_every == 0):
            continue
        aside = hidden(folder, step, "gone", attempt)
        os.rename(path, aside)
        dropped.append(step)
    return dropped


def sweep(folder: Path) -> None:
    """Delete what was put aside; apart from naming it gone, since that much may take as long as a save."""
    for path in _hidden_folders(folder, "gone"):
        remove(path)


def _run_of(path: Path) -> str | None:
    try:
        return manifest.read(path, sizes=False).run_id
    except (Damaged, Refused):
        return None


def check_owner(folder: Path, step: int, run_id: str) -> None:
    """Refuse to replace a step that another run wrote."""
    path = folder / manifest.step_name(step)
    other = _run_of(path) if path.exists() else None
    if other is not None and other != run_id:
        raise Refused(
            f"{path.name} here belongs to another run",
            exit_code=Exit.MISMATCH,
            key="checkpoint.store",
            seen=f"run id {other}; this run is {run_id}",
            rule="a run never writes over another's checkpoints",
            use="another --name, or another checkpoint.store",
            where=str(path),
        )


def remove(path: Path) -> None:
    """Delete a folder; what cannot be deleted stays, hidden, for the next save to try."""
    shutil.rmtree(path, ignore_errors=True)


def _hidden_folders(folder: Path, kind: str) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if (m := _HIDDEN.fullmatch(p.name)) and m[2] == kind)


def _step_part(path: Path) -> str:
    found = _HIDDEN.fullmatch(path.name)
    return found[1] if found else ""


@contextmanager
def store_errors(path: Path, need_bytes: int = 0) -> Iterator[None]:
    """Turn what the file system says into an error that names path, bytes needed and free, and what to do."""
    try:
        yield
    except OSError as error:
        raise store_error(error, path, need_bytes) from error


_ADVICE: dict[int | None, tuple[str, str]] = {
    errno.ENOSPC: ("is full", "free space, lower checkpoint.keep, or move checkpoint.store"),
    errno.EDQUOT: ("is over its quota", "raise the quota, lower checkpoint.keep, or move checkpoint.store"),
    errno.EROFS: ("is read-only", "mount it writable, or move checkpoint.store"),
    errno.EACCES: ("is not writable", "give this user write permission, or move checkpoint.store"),
    errno.EPERM: ("is not writable", "give this user write permission, or move checkpoint.store"),
    errno.ENOENT: (
        "has vanished, or is not shared by all hosts",
        "give checkpoint.store a folder that every host sees, and leave it there",
    ),
    errno.EIO: ("gives input/output errors", "check the disk, or move checkpoint.store"),
}


def store_error(error: OSError, path: Path, need_bytes: int = 0) -> Failed:
    """Failed with exit 55 for this error of the file system."""
    fault, use = _ADVICE.get(error.errno, ("cannot be written", "check the path, or move checkpoint.store"))
    free, inodes = _free(path)
    if error.errno == errno.ENOSPC and inodes == 0:
        fault, use = "has no inodes left", "delete files there, or move checkpoint.store"
    code = errno.errorcode.get(error.errno or 0, "unknown")
    need = f"; {need_bytes:,} bytes needed" if need_bytes else ""
    return Failed(
        f"checkpoint not saved: the store {fault}",
        exit_code=Exit.STORE,
        key="checkpoint.store",
        seen=f"{code} ({error.strerror}) at {error.filename or path}{need}, {free:,} bytes free",
        rule="a checkpoint is complete or not there; the last good one is untouched",
        use=use,
        where=str(path),
    )


def _free(path: Path) -> tuple[int, int]:
    """(bytes free, inodes free) at the nearest folder that exists; inodes -1 where the system counts none."""
    for place in (path, *path.parents):
        try:
            found = os.statvfs(place)
        except OSError:
            continue
        return found.f_bavail * found.f_frsize, found.f_favail if found.f_files else -1
    return 0, -1


def check_store(folder: Path, need_bytes: int = 0) -> None:
    """Before the first step: the folder can be made and written, and has room. Raises Failed (55)."""
    with store_errors(folder, need_bytes):
        folder.mkdir(exist_ok=True)
        probe = folder / f".probe-{process.host()}-{os.getpid()}"
        try:
            probe.write_text("a checkpoint can be written here\n", encoding="utf-8")
        finally:
            probe.unlink(missing_ok=True)
        if _free(folder)[0] < need_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

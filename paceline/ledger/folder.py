"""The run folder (interface §6): where each file of a run is, how runs are named, found and deleted."""

from __future__ import annotations

import difflib
import fnmatch
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paceline.ledger import recognise, removal
from paceline.ledger.atomic import read_json_or
from paceline.ledger.lock import Lock
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many
from paceline.ledger.status import Heartbeat, Status

__all__ = [
    "Heartbeat",
    "Lock",
    "RunFolder",
    "Status",
    "all_runs",
    "check_run_name",
    "create",
    "find",
    "newest_of",
]

NAME_BYTES = 80
_RESERVED = {"con", "prn", "aux", "nul", "last"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10)}


@dataclass(frozen=True)
class RunFolder:
    """Names the files of one run. Holds a path and nothing else; nothing is read or made by a property."""

    path: Path

    def __init__(self, path: Path | str) -> None:
        object.__setattr__(self, "path", Path(path))

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def job_toml(self) -> Path:
        return self.path / "job.toml"

    @property
    def source(self) -> Path:
        return self.path / "source"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def phases(self) -> Path:
        return self.path / "phases"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def ledgers(self) -> Path:
        return self.path / "ledger"

    def ledger(self, rank: int) -> Path:
        return self.ledgers / f"rank-{rank:05d}.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def console_log(self) -> Path:
        return self.logs / "console.log"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:05d}.log"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evidence(self) -> Path:
        return self.path / "evidence"

    @property
    def traces(self) -> Path:
        return self.path / "traces"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def plan_html(self) -> Path:
        return self.path / "plan.html"

    def read_status(self) -> Status | None:
        """The status, or ``None`` when there is none that can be read."""
        return Status.read(self.status)

    def started_s(self) -> float:
        """When the run was first started, in Unix seconds; the folder's own time when no status says."""
        status = self.read_status()
        if status is not None and status.started_s > 0:
            return status.started_s
        try:
            return self.path.stat().st_mtime
        except OSError:
            return 0.0

    def disk_bytes(self) -> int:
        """Bytes of all files; a file with several names in the run is counted once."""
        return _disk_bytes(self.path)

    def is_run(self) -> bool:
        """Whether this is a run: files that Paceline wrote say so, never a ``job.toml`` alone."""
        return recognise.is_run(self.path)

    def shown_state(self) -> str:
        """The state, ``lost`` where its process is gone; ``unknown`` when no status can be read."""
        status = self.read_status()
        if status is not None and status.shown_state() == "lost":
            status = self.read_status()  # it may have said its last word between our reading and our looking
        return status.shown_state() if status is not None else "unknown"

    def delete(self) -> int:
        """Removes the run and returns the bytes freed; a run that a living process holds is refused (56)."""
        return removal.delete(self)

    def copy_source(self, job_file: Path | None, files: Iterable[Path] = ()) -> list[Path]:
        """Keeps the job as given, and each ``file.py`` that it names, in ``source/``; returns the copies."""
        self.source.mkdir(parents=True, exist_ok=True)
        copies = []
        for original in dict.fromkeys([*([job_file] if job_file else []), *files]):
            target = self.source / original.name
            if target in copies:  # same file name in two folders: keep both
                target = self.source / f"{original.parent.name}-{original.name}"
            shutil.copyfile(original, target)
            copies.append(target)
        return copies


def check_run_name(name: str) -> str:
    """Returns ``name``, or refuses it with the nearest valid one (interface §1)."""
    rule = ""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        rule = "a run name has letters, digits, '.', '_' and '-' only"
    elif len(name) > NAME_BYTES:
        rule = f"a run name has at most {NAME_BYTES} bytes"
    elif name.endswith(".") or name.startswith((".", "-")):
        rule = "a run name does not begin with '.' or '-' nor end with '.'"
    elif name.lower().split(".")[0] in _RESERVED:
        rule = "names that Windows reserves (con, nul, com1 …) and 'last' are not run names"
    if not rule:
        return name
    raise Refused(
        f"run name {name!r} cannot be used",
        exit_code=Exit.USAGE,
        key="run.name",
        seen=name,
        rule=rule,
        use=f"--name {_valid_name(name)}",
    )


def create(root: Path | str, name: str) -> RunFolder:
    """Makes ``NAME``, or ``NAME-2``, ``NAME-3`` … with subfolders; never touches another run."""
    root = Path(root)
    check_run_name(name)
    try:
        root.mkdir(parents=True, exist_ok=True)
        taken = {entry.name.lower() for entry in root.iterdir()}
        number = 1
        while True:
            suffix = f"-{number}" if number > 1 else ""
            candidate = name[: NAME_BYTES - len(suffix)] + suffix
            number += 1
            if candidate.lower() in taken:
                continue
            try:
                (root / candidate).mkdir()
            except FileExistsError:  # another process was faster
                continue
            break
        folder = RunFolder(root / candidate)
        for sub in recognise.SUBFOLDERS:
            (folder.path / sub).mkdir()
    except OSError as error:
        raise Refused(
            f"no run can be made under {root}",
            exit_code=Exit.STORE,
            key="run.root",
            seen=str(error),
            rule="the folder of runs must be writable",
            use="--set run.root=FOLDER",
        ) from error
    return folder


def all_runs(root: Path | str) -> list[RunFolder]:
    """Every run under ``root``, the most recently started first."""
    try:
        entries = [RunFolder(entry) for entry in Path(root).iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted((f for f in entries if f.is_run()), key=lambda f: (f.started_s(), f.name), reverse=True)


def split_step(run: str) -> tuple[str, int | None]:
    """``RUN@STEP`` → (RUN, STEP); without ``@STEP`` the step is ``None``."""
    match = re.fullmatch(r"(.*)@(\d+)", run, flags=re.DOTALL)
    return (match[1] or "last", int(match[2])) if match else (run, None)


def find(run: str | Path = "last", root: Path | str = "runs", *, exit_code: int = Exit.USAGE) -> RunFolder:
    """The run that ``run`` names: a path, a name under ``root`` (case ignored), or ``last``.

    Raises:
        Refused: with ``exit_code`` (2; 52 where something is to be resumed) and the nearest names; (2) for
            ``RUN@STEP``, since what is done to a run is never done for a checkpoint's name.
    """
    name, step = split_step(str(run))
    if step is not None:
        for candidate in (Path(root) / run, Path(run)):
            if RunFolder(candidate).is_run():  # a folder that somebody renamed so
                return RunFolder(candidate)
        raise _a_checkpoint(str(run), name)
    if name == "last":
        newest = all_runs(root)
        if newest:
            return newest[0]
    else:
        for candidate in (Path(root) / name, Path(name)):
            if RunFolder(candidate).is_run():
                return RunFolder(candidate)
        for folder in all_runs(root):
            if folder.name.lower() == name.lower():
                return folder
    raise _not_found(name, Path(root), exit_code)


def find_all(runs: Iterable[str], root: Path | str = "runs") -> list[RunFolder]:
    """As :func:`find` for each; a name with ``* ? [`` stands for every run that it matches, oldest first."""
    found: dict[Path, RunFolder] = {}
    for run in runs:
        if any(c in run for c in "*?[") and split_step(run)[1] is None:
            matches = [f for f in reversed(all_runs(root)) if fnmatch.fnmatchcase(f.name, run)]
            if not matches:
                raise _not_found(run, Path(root), Exit.USAGE)
        else:
            matches = [find(run, root)]
        found.update({f.path.resolve(): f for f in matches})
    return list(found.values())


def newest_of(root: Path | str, name: str, *, kind: str = "train") -> RunFolder | None:
    """The most recently started run of this kind named ``NAME``, ``NAME-2`` …: the one to resume."""
    pattern = re.compile(rf"{re.escape(name)}(-([2-9]|[1-9]\d+))?", re.IGNORECASE)
    for folder in all_runs(root):
        # Without a resolved job it died before there was anything to go on with.
        if pattern.fullmatch(folder.name) and folder.job_toml.is_file():
            status = folder.read_status()
            if status is None or status.kind == kind:
                return folder
    return None


def _a_checkpoint(word: str, name: str) -> Refused:
    return Refused(
        f"{word} is a checkpoint, not a run",
        exit_code=Exit.USAGE,
        key="RUN",
        seen=word,
        rule="this takes a whole run; RUN@STEP is for what reads one checkpoint (checkpoint inspect, "
        "checkpoint verify, sample)",
        use=name,
    )


def _not_found(name: str, root: Path, exit_code: int) -> Refused:
    names = [folder.name for folder in all_runs(root)]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:3]
    return Refused(
        f"no run {name!r}" if name != "last" else "there is no run yet",
        exit_code=exit_code,
        key="RUN",
        seen=f"{name}, under {root}/"
        + (f" with {many(len(names), 'run')}" if names else ", which holds no run"),
        rule="RUN is a path, a run's name, or 'last'",
        allowed=", ".join(near),
        use=near[0] if near else "paceline job new > job.toml, then paceline train job.toml",
    )


def _valid_name(name: str) -> str:
    valid = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:NAME_BYTES].strip(".-") or "run"
    return f"run-{valid}"[:NAME_BYTES] if valid.lower().split(".")[0] in _RESERVED else valid


def _disk_bytes(path: Path) -> int:
    total, seen = 0, set()
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                found = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            if found.st_nlink > 1:
                if (found.st_dev, found.st_ino) in seen:
                    continue
                seen.add((found.st_dev, found.st_ino))
            total += found.st_size
    return total


def read_manifest(folder: RunFolder) -> dict[str, object]:
    """The manifest, or an empty one when it cannot be read."""
    found = read_json_or(folder.manifest, {})
    return found if isinstance(found, dict) else {}

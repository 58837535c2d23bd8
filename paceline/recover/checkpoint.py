"""Looking at checkpoints: which one to resume from, what is in one, and whether every byte is as written.

No torch: ``paceline checkpoint list|inspect|verify`` and the launcher use this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.ledger.outcome import Exit, Failed, Refused
from paceline.recover import manifest, steps
from paceline.recover.container import Damaged, Reader
from paceline.recover.manifest import Manifest, Slice


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: in which file, in which tensor (empty: the file as a whole), and what."""

    file: str
    tensor: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.tensor + ' ' if self.tensor else ''}{self.what}"


def latest(folder: Path) -> Path | None:
    """The checkpoint to resume from: its manifest read and its files there, at the right sizes.

    None when nothing complete was ever saved. A folder that merely has a step's name is not a checkpoint.

    Raises:
        Failed: what ``latest`` names is damaged (53); the error names the newest older step that is good.
    """
    if not folder.is_dir():
        return None
    try:
        named = steps.read_latest(folder)
    except Damaged as fault:
        raise damaged(folder, Problem(steps.LATEST, "", fault.what)) from fault
    if named is None:
        return _newest_complete(folder)
    path = steps.meant(folder, *named)
    if path is None:
        raise _not_meant(folder, named[0])
    open_manifest(path)
    return path


def latest_good(folder: Path) -> tuple[Path | None, Failed | None]:
    """As :func:`latest`; where that is damaged as a whole (a file missing or cut short, a manifest that does not read),
    the newest other step whose every byte verifies, and what is wrong with the newer one.

    Raises:
        Failed: (53) it is damaged, and no other step is good.
    """
    try:
        return latest(folder), None
    except Failed as fault:
        if fault.exit_code != Exit.DAMAGED:
            raise
        good = good_step(folder)
        path = None if good is None else of_step(folder, good)
        if path is None:
            raise
        return path, fault


def passed_over(path: Path | None, fault: Failed) -> str:
    """A sentence for the console."""
    name = "the beginning" if path is None else path.name
    return f"{fault.message} ({fault.seen}): goes on from {name}, every byte of it verified"


def _not_meant(folder: Path, name: str) -> Failed:
    what = _fault(folder / name) or "is not the one that `latest` names: its hash differs"
    return damaged(folder / name, Problem(f"{name}/{manifest.NAME}", "", what))


def _newest_complete(folder: Path) -> Path | None:
    """Without ``latest`` (killed between the first rename and it): the newest step, if all are one run's.

    A step is published whole, so one that holds files and no longer reads is damaged, and no older one answers
    for it. An empty folder was never a step.
    """
    saved = [path for _, path in reversed(steps.published(folder)) if any(path.iterdir())]
    if not saved:
        return None
    open_manifest(saved[0])
    found = [(path, m) for path in saved if (m := _readable(path)) is not None]
    if len({m.run_id for _, m in found}) > 1:
        raise Failed(
            "checkpoints of several runs and no `latest`",
            exit_code=Exit.DAMAGED,
            seen=", ".join(f"{p.name} of run {m.run_id}" for p, m in found[:4]),
            rule="`latest` says which step a run resumes from",
            use=f"name the step: {_run_name(folder)}@{manifest.step_of(found[0][0].name)}",
            where=str(folder),
        )
    return saved[0]


def of_step(folder: Path, step: int) -> Path | None:
    """The folder of this step, damaged or not; ``None`` when there never was one.

    Raises:
        Failed: (53) ``latest`` names this step, and no folder is what it names.
    """
    name = manifest.step_name(step)
    try:
        named = steps.read_latest(folder)
    except Damaged:
        named = None  # `latest` says which step is the newest, and that is not asked
    if named is not None and named[0] == name:
        meant = steps.meant(folder, *named)
        if meant is None:
            raise _not_meant(folder, name)
        return meant
    return next((path for number, path in steps.published(folder) if number == step), None)


def _readable(path: Path) -> Manifest | None:
    try:
        return manifest.read(path)
    except (Damaged, Refused):
        return None


def _fault(path: Path) -> str:
    try:
        manifest.read(path)
    except Damaged as fault:
        return str(Problem(fault.file, fault.tensor, fault.what)) if fault.file else fault.what
    return ""


def open_manifest(step_dir: Path) -> Manifest:
    """The checked manifest of a checkpoint; Failed (53) names what is damaged."""
    try:
        return manifest.read(step_dir)
    except Damaged as fault:
        raise damaged(step_dir, Problem(fault.file or manifest.NAME, fault.tensor, fault.what)) from fault


def damaged(step_dir: Path, problem: Problem) -> Failed:
    """The error for a damaged checkpoint. It looks for another one that is whole, and says so."""
    folder = step_dir.parent if manifest.step_of(step_dir.name) is not None else step_dir
    good = good_step(folder, besides=step_dir.name)
    return Failed(
        f"checkpoint damaged: {problem.file}",
        exit_code=Exit.DAMAGED,
        seen=str(problem),
        rule="every byte read from a checkpoint has the hash that was written",
        use=f"paceline train {_run_name(folder)}@{good} --resume: the newest good one, every byte verified"
        if good is not None
        else "no other checkpoint here is good: start the run again, or restore this one from a copy",
        where=str(step_dir),
    )


def _run_name(folder: Path) -> str:
    """How the run around this folder of checkpoints is named at a command line."""
    return str(folder.parent) if folder.name == "checkpoints" else "RUN"


def good_step(folder: Path, *, besides: str = "") -> int | None:
    """The newest step whose every byte verifies."""
    for step, path in reversed(steps.published(folder)):
        if path.name != besides and not any(True for _ in problems(path)):
            return step
    return None


def verify(step_dir: Path) -> list[Problem]:
    """Read every byte of a checkpoint and return all that is wrong; empty means whole."""
    return list(problems(step_dir))


def problems(step_dir: Path) -> Iterator[Problem]:
    """As :func:`verify`, one at a time."""
    try:
        table = manifest.read(step_dir, sizes=False)
    except Damaged as fault:
        yield Problem(manifest.NAME, fault.tensor, fault.what)
        return
    except Refused as error:
        yield Problem(manifest.NAME, "", error.message)
        return
    known = {manifest.NAME, *table.files}
    for extra in sorted(p.name for p in step_dir.iterdir() if p.name not in known):
        yield Problem(extra, "", "is not part of this checkpoint")
    for name in sorted(table.files):
        yield from _file_problems(step_dir, table, name)


def _file_problems(step_dir: Path, table: Manifest, name: str) -> Iterator[Problem]:
    slices = [
        (t, s, table.tensors[t].dtype)
        for t in table.tensors
        for s in table.tensors[t].slices
        if s.file == name
    ]
    try:
        reader = open_shard(step_dir, table, name)
    except Damaged as fault:
        listed = fault.tensor or (
            f"(holds {', '.join(sorted({t for t, _, _ in slices})[:3])} …)" if slices else ""
        )
        yield Problem(name, listed, fault.what)
        return
    with reader:
        for key in sorted(set(reader.keys) - {s.key for _, s, _ in slices}):
            yield Problem(name, key, "is not in the manifest")
        for tensor, part, dtype in slices:
            try:
                check_slice(reader, part, dtype)
                reader.check(part.key, part.hashes)
            except Damaged as fault:
                yield Problem(name, tensor, fault.what)


def open_shard(step_dir: Path, table: Manifest, name: str) -> Reader:
    """A shard, its size and header compared with the manifest."""
    file = table.files[name]
    return Reader(
        step_dir / name, size=file.size, header_bytes=file.header_bytes, header_hash=file.header_hash
    )


def check_slice(reader: Reader, part: Slice, dtype: str) -> None:
    """The shard's header and the manifest say the same of this slice, or Damaged."""
    place = reader.keys.get(part.key)
    if place is None:
        raise Damaged("is missing from the file", part.key)
    if (place.dtype, place.shape) != (dtype, part.shape):
        raise Damaged(
            f"is {place.dtype} {list(place.shape)} in the file, {dtype} {list(part.shape)} in the manifest"
        )


def list_checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Every step folder by number: step, path, complete, latest, bytes, layout, world_size, run_id,
    created, problem."""
    try:
        named = steps.read_latest(folder)
    except Damaged:
        named = None
    rows = []
    for step, path in steps.published(folder):
        row: dict[str, Any] = {
            "step": step,
            "path": str(path),
            "complete": False,
            "latest": False,
            "problem": "",
        }
        try:
            table = manifest.read(path)
        except Damaged as fault:
            row["problem"] = str(Problem(fault.file or manifest.NAME, fault.tensor, fault.what))
        except Refused as error:
            row["problem"] = error.message
        else:
            row.update(
                complete=True,
                latest=named == (path.name, table.hash),
                bytes=table.nbytes,
                layout=table.layout,
                world_size=table.world_size,
                run_id=table.run_id,
                created=table.created,
            )
        rows.append(row)
    return rows


def inspect(step_dir: Path) -> dict[str, Any]:
    """What a checkpoint holds: identity, scalars, counts and bytes by namespace, and every tensor's shape
    and cuts."""
    table = open_manifest(step_dir)
    spaces: dict[str, dict[str, int]] = {}
    for name, tensor in table.tensors.items():
        row = spaces.setdefault(name.partition("/")[0], {"tensors": 0, "bytes": 0})
        row["tensors"] += 1
        row["bytes"] += tensor.nbytes
    return {
        "schema": 1,
        "path": str(step_dir),
        "step": table.step,
        "layout": table.layout,
        "world_size": table.world_size,
        "created": table.created,
        "paceline": table.paceline,
        "format": manifest.FORMAT,
        "identity": table.identity,
        "scalars": table.scalars,
        "ties": table.ties,
        "groups": table.groups,
        "namespaces": spaces,
        "files": {name: file.size for name, file in sorted(table.files.items())},
        "tensors": {
            name: {"shape": list(t.shape), "dtype": t.dtype, "slices": len(t.slices)}
            for name, t in sorted(table.tensors.items())
        },
    }

"""Writing a checkpoint: every rank writes the slices it owns, rank 0 checks and publishes them, and all succeed
or none does.

The order is the promise: write in a hidden folder, make it durable, read it back and compare hashes,
rename, and write ``latest`` last. A kill at any instant leaves the previous checkpoint as it was.

No torch: what is written lies in host memory already, and the process that writes need not be the one that trains.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline import __version__
from paceline.ledger import atomic
from paceline.ledger.outcome import Exit, Failed
from paceline.recover import container, manifest, steps
from paceline.recover.container import Damaged
from paceline.recover.manifest import File, Manifest, Slice, Tensor
from paceline.recover.pieces import Snapshot
from paceline.recover.slices import cover_fault
from paceline.recover.together import Together


@dataclass(frozen=True)
class Saved:
    """A finished save, for the ledger and the console. Usable as a path.

    Attributes:
        nbytes: bytes of data over all ranks. seconds: from call to return on this rank.
        write_s: this rank's writing, with fsync and reading back.
        dropped: older steps that retention put aside; ``steps.sweep`` deletes them.
        warning: empty, or what went wrong after the checkpoint was safe.
    """

    path: Path
    step: int
    nbytes: int
    seconds: float
    write_s: float
    dropped: tuple[int, ...] = ()
    warning: str = ""

    def __fspath__(self) -> str:
        return str(self.path)


def write(
    folder: Path,
    taken: Snapshot,
    ranks: Together,
    *,
    layout: str,
    identity: Mapping[str, str],
    keep: int = 2,
    keep_every: int | None = None,
    attempt: int = 0,
    moved: Callable[[], None] = lambda: None,
) -> Saved:
    """Write what one rank took of a state; called for every rank, with what lets them go on together.

    Args:
        identity: run_id, job_hash, data_hash, tokenizer_hash, code_hash.
        keep, keep_every: this run's newest steps to keep; steps that are multiples of ``keep_every``
            stay for good.
        attempt: which start of the run this is; two attempts never write in one folder.
        moved: called after each block that was written or read back.

    Raises:
        Failed: the store is full, read-only or gone (55), or ranks disagree (32).
        Refused: the step there is another run's (54).
    """
    began = time.monotonic()
    step = int(taken.scalars["step"])
    temp = steps.hidden(folder, step, "tmp", attempt)
    run_id = identity.get("run_id", "")
    try:
        ranks.together(lambda: _open(folder, temp, step, run_id, attempt), on=0)
        nbytes = ranks.total(taken.nbytes)
        spent = ranks.together(lambda: _write_rank(temp, taken, nbytes, moved))
        head = head_of(taken, layout=layout, world_size=ranks.size, identity=identity)
        ranks.together(lambda: _publish(folder, temp, head, attempt), on=0)
    except BaseException:
        if ranks.rank == 0:
            steps.remove(temp)
        raise
    dropped = ranks.together(lambda: _prune(folder, run_id, keep, keep_every, attempt), on=0)
    assert spent is not None
    path = folder / manifest.step_name(step)
    return Saved(path, step, nbytes, time.monotonic() - began, spent, *(dropped or ((), "")))


def write_alone(
    folder: Path, parts: Iterable[Snapshot], head: Manifest, *, attempt: int = 0, to_latest: bool = True
) -> int:
    """A whole save by one process: every rank's part in turn, checked and published as :func:`write` does it.

    Nobody else writes in ``folder`` meanwhile: the caller holds a lock.

    Args:
        parts: by rank, ``head.world_size`` of them, each needed only while it is written.
        head: the manifest without tensors and files.
        to_latest: whether ``latest`` is to name this step.

    Returns:
        Bytes of data.

    Raises:
        Failed: the store is full, read-only or gone (55); whatever reading the parts raises.
        Refused: the step there is another run's (54).
    """
    temp = steps.hidden(folder, head.step, "tmp", attempt)
    nbytes = 0
    try:
        _open(folder, temp, head.step, head.run_id, attempt)
        for taken in parts:
            _write_rank(temp, taken, taken.nbytes, lambda: None)
            nbytes += taken.nbytes
        _publish(folder, temp, head, attempt, to_latest)
    except BaseException:
        steps.remove(temp)
        raise
    return nbytes


def head_of(taken: Snapshot, *, layout: str, world_size: int, identity: Mapping[str, str]) -> Manifest:
    """The manifest of a save before anything is written: no tensors, no files."""
    return Manifest(
        step=int(taken.scalars["step"]),
        layout=layout,
        world_size=world_size,
        identity=dict(identity),
        scalars=taken.scalars,
        ties=taken.ties,
        groups=taken.groups,
        tensors={},
        files={},
        paceline=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _open(folder: Path, temp: Path, step: int, run_id: str, attempt: int) -> None:
    with steps.store_errors(folder):
        folder.mkdir(exist_ok=True)
        steps.check_owner(folder, step, run_id)
        steps.clear_leftovers(folder, attempt=attempt, own=temp)
        temp.mkdir()
        steps.mark(temp, attempt)


def _write_rank(temp: Path, taken: Snapshot, nbytes: int, moved: Callable[[], None]) -> float:
    """Write this rank's shard, which is read back, and its record; seconds."""
    path = temp / manifest.shard_name(taken.rank)
    began = time.monotonic()
    items = [piece.item for piece in taken.pieces]
    told = {"format": "pt", "rank": str(taken.rank)}
    with steps.store_errors(path, nbytes):
        try:
            written = container.write(path, items, metadata=told, wrote=moved)
        except Damaged as fault:
            raise _not_read_back(
                "what was written does", f"{path}: {fault.tensor} {fault.what}", path
            ) from fault
        atomic.write_bytes(_record(temp, taken.rank), json.dumps(_table(taken, written)).encode())
    return time.monotonic() - began


def _not_read_back(what: str, seen: str, path: Path) -> Failed:
    return Failed(
        f"checkpoint not saved: {what} not read back",
        exit_code=Exit.STORE,
        key="checkpoint.store",
        seen=seen.replace(":  ", ": ").strip(),
        rule="a checkpoint is named only after every byte was read back and its hash compared",
        use="check the disk, or move checkpoint.store",
        where=str(path),
    )


def _record(temp: Path, rank: int) -> Path:
    return temp / f"rank-{rank:05d}.json"


def _table(taken: Snapshot, written: container.Written) -> dict[str, Any]:
    """What rank 0 needs to know of a rank's part. It goes through a file, so no object crosses the wire."""
    return {
        "file": [written.size, written.header_bytes, written.header_hash],
        "tensors": taken.tensors,
        "agreed": _agreed(taken),
        "slices": [
            [p.tensor, p.item.key, p.starts, p.item.shape, written.hashes[p.item.key]] for p in taken.pieces
        ],
    }


def _agreed(taken: Snapshot) -> str:
    """A hash of what must be equal on all ranks."""
    return container.digest(json.dumps([taken.scalars], sort_keys=True).encode())


def _publish(folder: Path, temp: Path, head: Manifest, attempt: int, to_latest: bool = True) -> None:
    with steps.store_errors(temp):
        full = _merge(temp, head)
        raw, own_hash = manifest.encode(full)
        atomic.write_bytes(temp / manifest.NAME, raw)
        for rank in range(full.world_size):
            _record(temp, rank).unlink()
        (temp / steps.MARKER).unlink()
        atomic.sync_folder(temp)
        try:
            manifest.read(temp)
        except Damaged as fault:
            seen = f"{fault.file} {fault.tensor} {fault.what}"
            raise _not_read_back("its manifest does", seen, temp / manifest.NAME) from fault
        steps.publish(folder, temp, full.step, own_hash, attempt, to_latest=to_latest)


def _merge(temp: Path, head: Manifest) -> Manifest:
    """One table of contents out of every rank's; every element of every tensor is in it exactly once."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    parts: dict[str, list[Slice]] = {}
    files: dict[str, File] = {}
    agreed = ""
    for rank in range(head.world_size):
        row = _read_record(temp, rank)
        if agreed not in ("", row["agreed"]):
            raise _disagree(
                f"rank {rank} has other scalars than rank 0", "step, position, seed are the same on all"
            )
        agreed = row["agreed"]
        files[manifest.shard_name(rank)] = File(*row["file"])
        for name, (shape, dtype) in row["tensors"].items():
            seen = (tuple(shape), dtype)
            if shapes.setdefault(name, seen) != seen:
                raise _disagree(
                    f"{name}: {seen} on rank {rank}, {shapes[name]} before", "one tensor has one shape"
                )
        for name, key, starts, shape, hashes in row["slices"]:
            part = Slice(manifest.shard_name(rank), key, tuple(starts), tuple(shape), tuple(hashes))
            parts.setdefault(name, []).append(part)
    tensors = {}
    for name, (shape, dtype) in shapes.items():
        slices = tuple(sorted(parts.get(name, ()), key=lambda s: s.starts))
        if fault := cover_fault(shape, [(s.starts, s.shape) for s in slices]):
            raise _disagree(
                f"{name}: {fault}", "the ranks' slices hold every element of a tensor exactly once"
            )
        tensors[name] = Tensor(shape, dtype, slices)
    return Manifest(**{**vars(head), "tensors": tensors, "files": files})


def _read_record(temp: Path, rank: int) -> dict[str, Any]:
    path = _record(temp, rank)
    if not path.exists():
        raise OSError(2, os.strerror(2), str(path))
    row: dict[str, Any] = atomic.read_json(path)
    return row


def _disagree(seen: str, rule: str) -> Failed:
    return Failed(
        "checkpoint not saved: the ranks do not hold one state",
        exit_code=Exit.DISAGREE,
        seen=seen,
        rule=rule,
        use="report this with the layout; the last good checkpoint is untouched",
    )


def _prune(
    folder: Path, run_id: str, keep: int, keep_every: int | None, attempt: int
) -> tuple[tuple[int, ...], str]:
    """Retention comes after the checkpoint is safe, so its failure is told and ends nothing."""
    try:
        return tuple(
            steps.prune(folder, run_id=run_id, keep=keep, keep_every=keep_every, attempt=attempt)
        ), ""
    except (OSError, Damaged) as error:
        return (), f"old checkpoints were not put aside: {error}"

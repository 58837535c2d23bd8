"""Whole tensors of a checkpoint in a folder for other tools: safetensors files of a bounded size, and a config.

The folder appears whole, by one rename, and never over another that holds anything. Values are streamed: memory is
bounded as a reshard's is. Every byte read has its hash compared; every byte written is read back.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from paceline.ledger import atomic
from paceline.ledger.outcome import Exit, Failed, Refused
from paceline.recover import container, steps
from paceline.recover.checkpoint import open_manifest
from paceline.recover.container import Damaged, Item
from paceline.recover.slices import Box
from paceline.recover.stream import Shards, Source, stream

MOST_FILE_BYTES = 5 * 10**9
"""As ``huggingface_hub`` cuts them."""

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Entry:
    """One tensor of the export: its key, and the checkpoint's tensor that it is; ``at``: only that index of dim 0."""

    key: str
    tensor: str
    at: int | None = None


@dataclass(frozen=True)
class Exported:
    """What was written: the folder, its weight files, tensors and bytes of data."""

    path: Path
    files: tuple[str, ...]
    tensors: int
    nbytes: int


def export(
    step_dir: Path,
    into: Path,
    entries: Sequence[Entry],
    beside: Mapping[str, bytes],
    *,
    most_file_bytes: int = MOST_FILE_BYTES,
) -> Exported:
    """Write ``entries`` of a checkpoint and the files ``beside`` into a new folder.

    One file ``model.safetensors``; above ``most_file_bytes`` several, and an index that says which key is where.

    Raises:
        Refused: (2) there is something at ``into``.
        Failed: (53) a byte is not what was written; (55) it cannot be written there.
    """
    refuse_taken(into)
    table = open_manifest(step_dir)
    temp = into.parent / f".{into.name}.part-{os.getpid()}"
    with Shards(step_dir, table) as source:
        items = [_item(source, entry, table.tensors[entry.tensor].shape, table.tensors[entry.tensor].dtype)
                 for entry in entries]  # fmt: skip
        files = cut(items, most_file_bytes)
        total = sum(item.nbytes for item in items)
        with _store(into, total):
            into.parent.mkdir(parents=True, exist_ok=True)
            steps.check_store(into.parent, total)
            temp.mkdir()
        try:
            with _store(into, total):
                for name, part in files.items():
                    container.write(temp / name, part, metadata={"format": "pt"})
                if len(files) > 1:
                    where = {item.key: name for name, part in files.items() for item in part}
                    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
                    atomic.write_json(temp / INDEX, index)
                for name, content in beside.items():
                    atomic.write_bytes(temp / name, content)
                atomic.sync_folder(temp)
                _name(temp, into)
        except BaseException:
            steps.remove(temp)
            raise
    return Exported(into, tuple(files), len(items), total)


def refuse_taken(into: Path) -> None:
    """Refuse (2) a place where something is; an empty folder is nothing."""
    try:
        taken = any(into.iterdir()) if into.is_dir() else os.path.lexists(into)
    except OSError:
        taken = True
    if taken:
        raise _taken(into)


def _taken(into: Path) -> Refused:
    return Refused(
        f"{into} is there already",
        exit_code=Exit.USAGE,
        key="DIR",
        seen="a folder that is not empty" if into.is_dir() else "a file",
        rule="an export never writes over anything",
        use=f"another folder: {quote(str(into.with_name(into.name + '-2')))}",
        where=str(into),
    )


def cut(items: Sequence[Item], most_bytes: int) -> dict[str, list[Item]]:
    """Name of each file → its items, filled in order; a tensor is never cut, so a larger one has a file of its own."""
    parts: list[list[Item]] = []
    held = 0
    for item in items:
        if not parts or (parts[-1] and held + item.nbytes > most_bytes):
            parts.append([])
            held = 0
        parts[-1].append(item)
        held += item.nbytes
    if len(parts) == 1:
        return {"model.safetensors": parts[0]}
    return {f"model-{n:05d}-of-{len(parts):05d}.safetensors": part for n, part in enumerate(parts, 1)}


def _item(source: Source, entry: Entry, shape: tuple[int, ...], dtype: str) -> Item:
    zero = (0,) * len(shape)
    if entry.at is None:
        return Item(entry.key, dtype, shape, stream(source, entry.tensor, dtype, Box(zero, zero, shape)))
    box = Box((entry.at, *zero[1:]), zero, (1, *shape[1:]))
    return Item(entry.key, dtype, shape[1:], stream(source, entry.tensor, dtype, box))


def _name(temp: Path, into: Path) -> None:
    try:
        os.rename(temp, into)  # over an empty folder, and no other
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _taken(into) from error
        raise
    atomic.sync_folder(into.parent)


@contextmanager
def _store(into: Path, need_bytes: int) -> Iterator[None]:
    """What the file system says, of an export: 55."""
    try:
        with steps.store_errors(into, need_bytes):
            yield
    except Failed as error:
        if error.exit_code != Exit.STORE:
            raise
        error.message = error.message.replace("checkpoint not saved", "not exported")
        raise _of_export(error, into) from error
    except Damaged as fault:
        told = Failed(
            "not exported: what was written does not read back", exit_code=Exit.STORE, seen=fault.what
        )
        raise _of_export(told, into) from fault


def _of_export(error: Failed, into: Path) -> Failed:
    return Failed(
        error.message,
        exit_code=Exit.STORE,
        key="DIR",
        seen=error.seen,
        rule="an export is complete or not there",
        use="free space there, or another folder",
        where=str(into),
    )

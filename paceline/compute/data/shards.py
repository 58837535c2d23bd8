"""Writing a prepared folder: token shards, documents, and the index last, all or nothing.

Everything goes into a folder of another name beside the target, is synced, and appears by one rename. A
killed writer leaves only such a folder; its name says which process of which host wrote it, so the next
preparation takes it away.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from paceline.compute.data.hashing import hash128, hash_file, mix_all
from paceline.compute.data.prepared import DOCUMENT, INDEX, SCHEMA
from paceline.ledger.atomic import sync_folder, write_json

SHARD_TOKENS = 1 << 27
_PART = re.compile(r"^\.part-(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]+$")
_FOREIGN_AGE_S = 24 * 3600


class StreamWriter:
    """Appends documents to one stream.

    Args:
        folder: the prepared folder being written.
        split, name, weight: what the stream is.
        dtype: ``<u2`` or ``<u4``.
        eos: appended to each text; None for sources without one.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        split: str,
        name: str,
        weight: float | None,
        dtype: str,
        eos: int | None,
    ) -> None:
        self._root, self._folder = folder, folder / f"{split}-{number}"
        self._folder.mkdir()
        self.split, self.name, self.weight = split, name, weight
        self._dtype, self._eos = np.dtype(dtype), eos
        self.tokens = self.documents = self.bytes = 0
        self._open: tuple[int, int, int, int] | None = None
        self._shard_tokens: list[int] = []
        self._hashes: dict[str, str] = {}
        self._digest = xxhash.xxh3_128()
        self._shard = self._open_shard()
        self._starts = (self._folder / "starts.bin").open("wb")
        self._table = (self._folder / "documents.bin").open("wb")

    def _open_shard(self) -> Any:
        self._shard_tokens.append(0)
        return (self._folder / f"tokens-{len(self._shard_tokens) - 1:05d}.bin").open("wb")

    def add(
        self,
        ids: np.ndarray,
        *,
        text: bool,
        size_bytes: int,
        offset: int,
        hash_: int,
        file: int,
        goes_on: bool = False,
    ) -> None:
        """One document, or a block of one that ``goes_on``; a text gets its end-of-document token here."""
        if self._open is None:
            np.array([self.tokens], "<i8").tofile(self._starts)
            self._open = (size_bytes, offset, hash_, file)
        else:
            size, offset, first_hash, file = self._open
            self._open = (size + size_bytes, offset, mix_all(first_hash, hash_), file)
        if not goes_on:
            if text and self._eos is not None:
                ids = np.concatenate([ids, [self._eos]])
            np.array([self._open], DOCUMENT).tofile(self._table)
            self._open = None
            self.documents += 1
        self.bytes += size_bytes
        self.tokens += ids.size
        stored = ids.astype(self._dtype)
        while stored.size:
            room = SHARD_TOKENS - self._shard_tokens[-1]
            piece, stored = stored[:room], stored[room:]
            data = piece.tobytes()
            self._shard.write(data)
            self._digest.update(data)
            self._shard_tokens[-1] += piece.size
            if self._shard_tokens[-1] == SHARD_TOKENS:
                self._close_shard()
                self._shard = self._open_shard()

    def _close_shard(self) -> None:
        path = Path(self._shard.name)
        self._hashes[str(path.relative_to(self._root))] = self._digest.hexdigest()
        self._digest = xxhash.xxh3_128()
        _close_synced(self._shard)

    def close(self) -> dict[str, str]:
        """Ends and syncs the files of the stream; their hashes by name."""
        np.array([self.tokens], "<i8").tofile(self._starts)
        self._close_shard()
        if self._shard_tokens[-1] == 0:
            name = f"tokens-{len(self._shard_tokens) - 1:05d}.bin"
            (self._folder / name).unlink()
            del self._hashes[str((self._folder / name).relative_to(self._root))]
            self._shard_tokens.pop()
        for file in (self._starts, self._table):
            _close_synced(file)
            path = Path(file.name)
            self._hashes[str(path.relative_to(self._root))] = hash_file(path)
        sync_folder(self._folder)
        return self._hashes

    def entry(self) -> dict[str, Any]:
        """The stream's line of the index."""
        return {
            "folder": self._folder.name,
            "split": self.split,
            "name": self.name,
            "weight": self.weight,
            "documents": self.documents,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "shard_tokens": self._shard_tokens,
        }


def _close_synced(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def write_synced(path: Path, content: bytes) -> str:
    """A small file of the folder; its hash."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hash128(content)


def finish(folder: Path, facts: dict[str, Any], hashes: dict[str, str], target: Path) -> None:
    """Writes the index and makes the folder appear as ``target``; a whole one that is already there stays."""
    files = {name: {"bytes": (folder / name).stat().st_size, "xxh3": hashes[name]} for name in sorted(hashes)}
    write_json(folder / INDEX, {"schema": SCHEMA, **facts, "files": files})
    try:
        os.rename(folder, target)
    except OSError:
        if not (target / INDEX).is_file():
            raise
        shutil.rmtree(folder)  # another preparation of the same data was faster
    sync_folder(target.parent)


def _host() -> str:
    return hash128(socket.gethostname().encode())[:8]


def part_folder(cache: Path) -> Path:
    """A new folder to write into, that a later preparation can tell to be ours."""
    folder = cache / f".part-{_host()}-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    return folder


def remove_leftovers(cache: Path) -> None:
    """Takes away what killed preparations left: of dead processes here, or a day old and from elsewhere."""
    for folder in cache.glob(".part-*"):
        match = _PART.match(folder.name)
        if match is None:
            continue
        try:
            old = time.time() - folder.stat().st_mtime > _FOREIGN_AGE_S
        except OSError:
            continue
        if not _alive(int(match["pid"])) if match["host"] == _host() else old:
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

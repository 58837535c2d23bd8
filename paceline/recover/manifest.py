"""The manifest of a checkpoint: what is in it, who made it, and a hash of every byte.

A checkpoint is a folder ``step-00000200`` with ``manifest.json`` and one safetensors file a rank. The
manifest is written in one canonical form and carries its own hash, so that any changed bit in it is found
too. Everything read from it is a claim until it is checked here: names, numbers, and that the slices hold
each element exactly once. No torch, so that ``paceline checkpoint list|inspect|verify`` answer at once.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.ledger.outcome import Exit, Refused
from paceline.recover.container import ITEM_BYTES, Damaged, counts, digest, open_regular
from paceline.recover.slices import cover_fault

FORMAT = 1
"""Raised when an older Paceline could not read what is written."""

NAME = "manifest.json"
MOST_BYTES = 1 << 30
IDENTITY = ("run_id", "job_hash", "data_hash", "tokenizer_hash", "code_hash")
_STEP = re.compile(r"step-([0-9]{8,18})")
_SHARD = re.compile(r"rank-[0-9]{5,9}\.safetensors")
_HASH = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Slice:
    """A block of a tensor in one file: the key there, where it starts in the tensor, its shape, its block
    hashes."""

    file: str
    key: str
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    hashes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "file": self.file,
            "key": self.key,
            "starts": list(self.starts),
            "shape": list(self.shape),
            "hashes": list(self.hashes),
        }


@dataclass(frozen=True)
class Tensor:
    """A whole tensor: its global shape, dtype (safetensors' name) and where its slices are."""

    shape: tuple[int, ...]
    dtype: str
    slices: tuple[Slice, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class File:
    """A shard: its size, and length and hash of its header. The rest is hashed slice by slice."""

    size: int
    header_bytes: int
    header_hash: str


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's table of contents."""

    step: int
    layout: str
    world_size: int
    identity: dict[str, str]
    scalars: dict[str, Any]
    ties: dict[str, str]
    groups: list[dict[str, Any]]
    tensors: dict[str, Tensor]
    files: dict[str, File]
    created: str = ""
    paceline: str = ""
    hash: str = ""

    @property
    def run_id(self) -> str:
        """The run that wrote it."""
        return self.identity.get("run_id", "")

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(file.size for file in self.files.values())

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without the hash."""
        return {
            "schema": 1,
            "format": FORMAT,
            "paceline": self.paceline,
            "created": self.created,
            "step": self.step,
            "layout": self.layout,
            "world_size": self.world_size,
            "identity": {name: self.identity.get(name) or "not stated" for name in IDENTITY},
            "scalars": self.scalars,
            "ties": self.ties,
            "groups": self.groups,
            "tensors": {
                name: {"shape": list(t.shape), "dtype": t.dtype, "slices": [s.to_dict() for s in t.slices]}
                for name, t in self.tensors.items()
            },
            "files": {
                name: {"size": f.size, "header_bytes": f.header_bytes, "header_hash": f.header_hash}
                for name, f in self.files.items()
            },
        }


def step_name(step: int) -> str:
    """The folder's name; eight digits, so that names sort as numbers for as long as anybody trains."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a folder's name says; None for any other name."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def shard_name(rank: int) -> str:
    """The file that this rank writes."""
    return f"rank-{rank:05d}.safetensors"


def encode(manifest: Manifest) -> tuple[bytes, str]:
    """(the file's bytes, its hash)."""
    table = manifest.to_dict()
    own = digest(_canonical(table))
    return _canonical({**table, "hash": own}), own


def _canonical(table: Mapping[str, Any]) -> bytes:
    text = json.dumps(table, separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", "surrogatepass")


def read(step_dir: Path, *, sizes: bool = True) -> Manifest:
    """The manifest of this folder, every claim checked; with ``sizes`` also that its files are there and as
    long.

    Raises:
        Damaged: it is missing, altered or untrue. Refused: a newer Paceline wrote it.
    """
    raw = _bytes(step_dir / NAME)
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError):
        raise Damaged("is not JSON") from None
    if not isinstance(table, dict):
        raise Damaged("is not a table")
    _check_format(table, step_dir)
    own = table.pop("hash", None)
    try:
        intact = own == digest(_canonical(table)) and raw == _canonical({**table, "hash": own})
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise Damaged("was altered: its own hash differs")
    manifest = _parse(table, str(own))
    if sizes:
        for name, file in manifest.files.items():
            check_size(step_dir / name, file.size)
    return manifest


def _bytes(path: Path) -> bytes:
    fd = open_regular(path)
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_size > MOST_BYTES:
            raise Damaged(f"is larger than {MOST_BYTES} bytes")
        return file.read()


def check_size(path: Path, size: int) -> None:
    """Raises Damaged, naming the file, unless this is a regular file of this size."""
    try:
        fd = open_regular(path)
    except Damaged as fault:
        raise Damaged(fault.what, file=path.name) from None
    try:
        found = os.fstat(fd).st_size
    finally:
        os.close(fd)
    if found != size:
        raise Damaged(f"{found} bytes, {size} expected", file=path.name)


def _check_format(table: Mapping[str, Any], step_dir: Path) -> None:
    found = table.get("format")
    if type(found) is not int or found < 1:
        raise Damaged("says no format version")
    if found > FORMAT:
        raise Refused(
            f"{step_dir.name} was written by a newer Paceline",
            exit_code=Exit.MISMATCH,
            seen=f"checkpoint format {found}, by paceline {table.get('paceline', 'not stated')}",
            rule=f"this Paceline reads checkpoint formats up to {FORMAT}",
            use=f"install paceline {table.get('paceline', 'of that version')} or newer",
            where=str(step_dir / NAME),
        )


def _parse(table: Mapping[str, Any], own: str) -> Manifest:
    """The values by type, or Damaged. A hash protects from accidents, this from a hostile file."""
    try:
        files = {_file_name(n): File(_count(f["size"]), _count(f["header_bytes"]), _hash(f["header_hash"]))
                 for n, f in table["files"].items()}  # fmt: skip
        tensors = {str(n): _tensor(n, row, files) for n, row in table["tensors"].items()}
        ties = {str(alias): str(name) for alias, name in table["ties"].items()}
        manifest = Manifest(
            step=_count(table["step"]),
            layout=str(table["layout"]),
            world_size=_count(table["world_size"]),
            identity={str(k): str(v) for k, v in table["identity"].items()},
            scalars=dict(table["scalars"]),
            ties=ties,
            groups=[dict(group) for group in table["groups"]],
            tensors=tensors,
            files=files,
            created=str(table["created"]),
            paceline=str(table["paceline"]),
            hash=own,
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Damaged(f"is not a manifest of format {FORMAT} ({type(error).__name__}: {error})") from None
    for alias, name in ties.items():
        if name not in tensors or alias in tensors:
            raise Damaged("ties a name to no tensor", alias)
    return manifest


def _tensor(name: str, row: Mapping[str, Any], files: Mapping[str, File]) -> Tensor:
    if not counts(row["shape"]) or row["dtype"] not in ITEM_BYTES:
        raise Damaged("has no proper shape or dtype", name)
    shape, size = tuple(row["shape"]), ITEM_BYTES[row["dtype"]]
    parts = tuple(_slice(name, part) for part in row["slices"])
    if fault := cover_fault(shape, [(p.starts, p.shape) for p in parts]):
        raise Damaged(fault, name)
    for part in parts:
        if part.file not in files:
            raise Damaged(f"lies in {part.file}, which the manifest does not list", name)
        if size * math.prod(part.shape) > files[part.file].size:
            raise Damaged(f"claims more bytes than {part.file} has", name)
    return Tensor(shape, row["dtype"], parts)


def _slice(name: str, part: Mapping[str, Any]) -> Slice:
    if not counts(part["starts"]) or not counts(part["shape"]):
        raise Damaged("has a slice without proper starts or shape", name)
    hashes = tuple(_hash(h) for h in part["hashes"])
    return Slice(
        _file_name(part["file"]), str(part["key"]), tuple(part["starts"]), tuple(part["shape"]), hashes
    )


def _file_name(name: Any) -> str:
    """A shard's name has one form, so that no path of a manifest leads out of its folder."""
    if not isinstance(name, str) or not _SHARD.fullmatch(name):
        raise Damaged(f"names a file {str(name)[:80]!r}; only rank-NNNNN.safetensors beside it is read")
    return name


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _hash(value: Any) -> str:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ValueError(f"{str(value)[:40]!r} is not a hash")
    return value

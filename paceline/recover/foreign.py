"""Weights that another program wrote: whole tensors in safetensors files, read as what a checkpoint holds.

*Nothing in them is believed or run*: only this format is opened, each claim of a header is checked before a byte is
read, an index may name files beside it and no others, and a value that is not finite is told. A tensor of ours may be
several of theirs (experts, one by one), and floats of another width are converted as they are read. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.ledger.atomic import read_json
from paceline.ledger.outcome import Exit, Failed, Refused
from paceline.recover.container import ITEM_BYTES, Damaged, Place, Reader
from paceline.recover.manifest import Slice

INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
FLOATS: Mapping[str, type] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


class Weights:
    """The files of a folder or one file, open; ``with Weights(path) as found``.

    Attributes:
        keys: key → (its file, its dtype, shape and place there).

    Raises:
        Refused: (21) there are none, or only of formats that are not opened.
        Failed: (53) one is not what the format says, or the index is untrue.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[str, Reader] = {}
        self.keys: dict[str, tuple[str, Place]] = {}
        try:
            for file in _files(path):
                self._add(file)
        except BaseException:
            self.close()
            raise

    def _add(self, file: Path) -> None:
        try:
            # a cache of downloads is made of links, and the user has named it
            reader = self._open[file.name] = Reader(file.resolve())
        except Damaged as fault:
            raise damaged(file, fault.tensor, fault.what) from fault
        for key, place in reader.keys.items():
            if key in self.keys:
                raise damaged(file, key, f"is in {self.keys[key][0]} too")
            self.keys[key] = (file.name, place)

    def read(self, key: str, start: int, nbytes: int) -> np.ndarray:
        """These bytes of a key's data."""
        file, place = self.keys[key]
        try:
            return self._open[file].read(place.start + start, nbytes)
        except Damaged as fault:
            raise damaged(self.path / file, key, fault.what) from fault

    def close(self) -> None:
        """Close every file."""
        for reader in self._open.values():
            reader.close()
        self._open.clear()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Whole:
    """One of our tensors, by what makes it: keys in the order of dim 0, or all of it one value.

    ``keys``: (theirs, the index of dim 0 that it is, None = all of it); () = every element is ``value``.
    """

    shape: tuple[int, ...]
    dtype: str
    keys: tuple[tuple[str, int | None], ...] = ()
    value: float = 0.0


class Imported:
    """Our tensors as :class:`paceline.recover.stream.Source`."""

    def __init__(self, weights: Weights, tensors: Mapping[str, Whole]) -> None:
        self._weights, self._tensors = weights, tensors

    def slices(self, tensor: str) -> Sequence[Slice]:
        """As ``Source`` says; ``key`` is theirs, empty where a value fills it."""
        made = self._tensors[tensor]
        zero = (0,) * len(made.shape)
        if not made.keys:
            return [Slice("", "", zero, made.shape, ())]
        return [
            Slice("", key, zero, made.shape, ())
            if at is None
            else Slice("", key, (at, *zero[1:]), (1, *made.shape[1:]), ())
            for key, at in made.keys
        ]

    def read(self, tensor: str, part: Slice, low: int, high: int) -> np.ndarray:
        """As ``Source`` says.

        Raises:
            Failed: (53) a value is not finite.
        """
        made = self._tensors[tensor]
        item = ITEM_BYTES[made.dtype]
        first, count = low // item, (high - low) // item
        if not part.key:
            return np.full(count, made.value, FLOATS[made.dtype]).view(np.uint8)
        place = self._weights.keys[part.key][1]
        theirs = ITEM_BYTES[place.dtype]
        values = widened(self._weights.read(part.key, first * theirs, count * theirs), place.dtype)
        with np.errstate(over="ignore"):  # is told as infinite below
            values = values.astype(FLOATS[made.dtype], copy=False)
        good = np.isfinite(values)
        if not good.all():
            at = np.unravel_index(first + int(np.argmin(good)), place.shape) if place.shape else ()
            where = f"{part.key}[{', '.join(map(str, at))}]"
            raise _not_finite(self._weights, part.key, f"{where} = {values[int(np.argmin(good))]}")
        return np.ascontiguousarray(values).view(np.uint8)


def widened(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes as floats that numpy knows: bfloat16 is the upper half of a float32."""
    values: np.ndarray = raw.view(FLOATS[dtype])
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else values


def same(weights: Weights, one: str, other: str, part_bytes: int = 32 << 20) -> bool:
    """Whether two keys hold the same bits."""
    a, b = weights.keys[one][1], weights.keys[other][1]
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    total = ITEM_BYTES[a.dtype] * math.prod(a.shape)
    parts = ((start, min(part_bytes, total - start)) for start in range(0, total, part_bytes))
    return all(np.array_equal(weights.read(one, s, n), weights.read(other, s, n)) for s, n in parts)


def _files(path: Path) -> list[Path]:
    """The files that hold the weights."""
    if path.is_file():
        if path.suffix != SUFFIX:
            raise _no_weights(path, path.name)
        return [path]
    if not path.is_dir():
        raise _no_weights(path, "nothing there")
    if (path / INDEX).is_file():
        return _indexed(path)
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    found = sorted(file for file in path.iterdir() if file.suffix == SUFFIX and file.is_file())
    if not found:
        there = sorted(file.name for file in path.iterdir())
        raise _no_weights(path, ", ".join(there[:6]) or "an empty folder")
    return found


def _indexed(path: Path) -> list[Path]:
    try:
        index = read_json(path / INDEX)
        names = sorted(set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise damaged(path / INDEX, "", "has no weight_map of keys and files") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(SUFFIX):
            raise damaged(
                path / INDEX, "", f"names {str(name)[:80]!r}; only {SUFFIX} files beside it are read"
            )
        if not (path / name).is_file():
            raise damaged(path / name, "", "is missing, and the index names it")
    return [path / name for name in names]


def _no_weights(path: Path, seen: str) -> Refused:
    return Refused(
        f"no safetensors in {path}",
        exit_code=Exit.MISSING,
        key="SOURCE",
        seen=seen,
        rule="weights are read from safetensors only: a pickle (.bin, .pt, .pth, .ckpt) runs what its author wrote",
        allowed=f"a file *{SUFFIX}, or a folder with {INDEX}, model{SUFFIX} or other {SUFFIX} files",
        use="a copy saved as safetensors (transformers: save_pretrained)",
        where=str(path),
    )


def damaged(file: Path, key: str, what: str) -> Failed:
    """53, of a file that another program wrote."""
    return Failed(
        f"weights damaged: {file.name}",
        exit_code=Exit.DAMAGED,
        seen=f"{key + ' ' if key else ''}{what}",
        rule="a file is what the format says, and its values are finite",
        use="get the file again",
        where=str(file),
    )


def _not_finite(weights: Weights, key: str, seen: str) -> Failed:
    error = damaged(weights.path, key, "")
    error.message = f"weights not finite: {weights.keys[key][0]}"
    error.seen = seen
    error.use = 'weights that were saved before they broke; of a float64 file, train.precision = "fp64"'
    return error

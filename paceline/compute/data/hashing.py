"""The two hashes of the data path: xxh3 of bytes, and splitmix64 of integers.

xxh3 names contents (documents, shards, sources); splitmix64 (Steele, Lea and Flood 2014, "Fast splittable
pseudorandom number generators") turns (seed, position) into an order without state. Neither is
cryptographic.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import xxhash

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_CHUNK_BYTES = 1 << 20

DOCUMENT_SEED = 0
"""Fixed, so that a document is held out by its content alone: the same in every run, on every machine."""


def hash64(data: bytes | bytearray | memoryview | np.ndarray) -> int:
    """xxh3-64 of the bytes, with the fixed seed: decides the hold-out."""
    return xxhash.xxh3_64_intdigest(data, seed=DOCUMENT_SEED)  # type: ignore[arg-type]


def hash128(data: bytes) -> str:
    """xxh3-128 of the bytes as 32 hex digits: names a prepared folder."""
    return xxhash.xxh3_128_hexdigest(data)


def hash_file(path: Path) -> str:
    """xxh3-128 of a file's content, read in pieces."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def mix_int(value: int) -> int:
    """splitmix64 of one integer (taken modulo 2**64)."""
    z = (value + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def mix_all(*values: int) -> int:
    """One 64-bit key from several integers; the order of the arguments matters."""
    key = 0
    for value in values:
        key = mix_int(key ^ (value & _MASK))
    return key


def mix_array(values: np.ndarray) -> np.ndarray:
    """splitmix64 of each element of a uint64 array; equal to :func:`mix_int` element by element."""
    z = values + np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_names(parts: Iterable[str]) -> str:
    """xxh3-128 of a list of texts; the lengths go in, so that no two lists collide by joining."""
    digest = xxhash.xxh3_128()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()

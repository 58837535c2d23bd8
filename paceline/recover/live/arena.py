"""One rank's tensors in one piece of shared memory, with a table that says what is where. No torch.

The memory has no name in any folder: the launcher holds it, a rank opens it through the launcher's descriptors, and
when the last of them has ended the system takes it back. Nothing is left behind, however a run ends.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.recover.buffer import Buffer, offsets
from paceline.recover.slices import Box

_LENGTH = struct.Struct("<Q")
_PAGE = 4096


def can_share() -> bool:
    """Whether this system has memory without a name that another process can open."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def path_of(buffer: Buffer) -> str:
    """How another process of this user opens the memory, while this process lives."""
    return f"/proc/{os.getpid()}/fd/{buffer.fd}"


def open_shared(path: str) -> Buffer:
    """The memory of :func:`path_of`. Raises OSError when its owner has ended."""
    return Buffer(os.open(path, os.O_RDWR | os.O_CLOEXEC))


@dataclass(frozen=True)
class Entry:
    """A tensor in the memory.

    Attributes:
        dtype: by the checkpoint format's name.
        shape: global.
        boxes: what of it is here.
        local: shape here. nbytes: of the memory it has, padding after the last row included.
        at: where it begins.
    """

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    local: tuple[int, ...]
    nbytes: int
    at: int = 0

    def row(self) -> list[object]:
        """As JSON."""
        boxes = [[list(box.starts), list(box.local), list(box.shape)] for box in self.boxes]
        return [self.dtype, list(self.shape), boxes, list(self.local), self.nbytes, self.at]

    @classmethod
    def read(cls, row: Sequence[object]) -> Entry:
        """What :meth:`row` wrote."""
        dtype, shape, boxes, local, nbytes, at = row
        parts = tuple(Box(tuple(s), tuple(i), tuple(n)) for s, i, n in boxes)  # type: ignore[attr-defined]
        return cls(str(dtype), tuple(shape), parts, tuple(local), int(nbytes), int(at))  # type: ignore[arg-type, call-overload]


class Arena:
    """The memory of one rank; empty until :meth:`lay_out`."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.table: dict[str, Entry] = _read_table(buffer)

    def lay_out(self, entries: Mapping[str, Entry]) -> None:
        """Make room for these tensors, in this order, and write the table.

        Raises:
            OSError: the system has not that much shared memory.
        """
        places = offsets([entry.nbytes for entry in entries.values()])
        start = _data_start(len(_json(entries, places, 1 << 62)))
        text = _json(entries, places, start)
        self.buffer.reserve(start + places[-1])
        self.buffer.bytes(0, 8)[:] = 0
        self.buffer.bytes(8, len(text))[:] = np.frombuffer(text, np.uint8)
        self.buffer.bytes(0, 8)[:] = np.frombuffer(_LENGTH.pack(len(text)), np.uint8)
        self.table = _parse(text)

    def bytes(self, name: str) -> np.ndarray:
        """The memory of one tensor (uint8), a view."""
        entry = self.table[name]
        return self.buffer.bytes(entry.at, entry.nbytes)


def _json(entries: Mapping[str, Entry], places: Sequence[int], start: int) -> bytes:
    rows = {
        name: [*entry.row()[:-1], start + place]
        for (name, entry), place in zip(entries.items(), places, strict=False)
    }
    return json.dumps(rows, separators=(",", ":")).encode()


def _data_start(text_bytes: int) -> int:
    return -(-(8 + text_bytes) // _PAGE) * _PAGE


def _read_table(buffer: Buffer) -> dict[str, Entry]:
    if os.fstat(buffer.fd).st_size < 8:
        return {}
    (length,) = _LENGTH.unpack(buffer.bytes(0, 8).tobytes())
    return _parse(buffer.bytes(8, length).tobytes()) if length else {}


def _parse(text: bytes) -> dict[str, Entry]:
    return {name: Entry.read(row) for name, row in json.loads(text).items()}

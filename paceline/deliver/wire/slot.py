"""Where each rank is right now: one fixed record a rank in a shared file, readable while the rank hangs.

A rank that waits for ever cannot say for what. So before each collective it writes axis, operation and number
into its own slot of a memory-mapped file, and a side process (the launcher) reads them. Nothing is sent, no
lock is taken: the writer brackets its record with two equal version numbers (a sequence lock) and a checksum,
and a reader that finds them different reads again.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import NamedTuple

SLOT_BYTES = 128
_RECORD = struct.Struct("<qqq?xxxxxxxd24s16s24s")  # rank, step, seq, inside, time, op, axis, group
_HEAD, _BODY, _CHECK, _TAIL = 0, 8, 8 + _RECORD.size, 8 + _RECORD.size + 4
_VERSION, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_READS_BEFORE_TORN = 200

assert _TAIL + _VERSION.size <= SLOT_BYTES


class LastCall(NamedTuple):
    """The last thing that a rank wrote.

    ``inside`` is true from the call until its completion is known; ``time_s`` is ``time.monotonic`` of the
    change; ``version`` grows with each write, so two reads with equal versions mean that nothing happened
    between them. A rank that has not written yet has ``version`` 0; a record that stayed half-written has
    ``torn`` set.
    """

    rank: int
    step: int = 0
    seq: int = 0
    op: str = ""
    axis: str = ""
    group: str = ""
    inside: bool = False
    time_s: float = 0.0
    version: int = 0
    torn: bool = False

    def __str__(self) -> str:
        if self.torn:
            return f"rank {self.rank}: its slot is half-written"
        if not self.op:
            return f"rank {self.rank}: no collective yet" + (f", step {self.step}" if self.step else "")
        where = "inside" if self.inside else "after"
        return (
            f"rank {self.rank}: {where} {self.op} #{self.seq} on {self.axis} ({self.group}), step {self.step}"
        )


def create_slots(path: Path | str, world_size: int) -> None:
    """An empty file of ``world_size`` slots; an older one is replaced."""
    Path(path).write_bytes(bytes(SLOT_BYTES * world_size))


class Slot:
    """One rank's record, writable by that rank only."""

    def __init__(self, path: Path | str, rank: int) -> None:
        self.rank, self.step = rank, 0
        self._version = 0
        self._names: dict[str, bytes] = {}
        with open(path, "r+b") as file:
            if file.seek(0, 2) < (rank + 1) * SLOT_BYTES:
                raise ValueError(f"{path} has no slot for rank {rank}")
            self._map = mmap.mmap(file.fileno(), 0)
        self._at = rank * SLOT_BYTES
        self._last = (0, b"", b"", b"")
        self._calls = 0
        self._lock = threading.Lock()  # a completion may be noted by a thread of the backend

    def call(self, op: str, axis: str, group: str, seq: int) -> int:
        """The rank enters a collective. Returns the ticket to give to :meth:`left`."""
        names = self._names
        try:
            self._last = (seq, names[op], names[axis], names[group])
        except KeyError:
            for name, width in ((op, 24), (axis, 16), (group, 24)):
                names[name] = name.encode()[:width]
            self._last = (seq, names[op], names[axis], names[group])
        self._calls += 1
        self._write(True)
        return self._calls

    def left(self, ticket: int) -> None:
        """That collective is complete. Says nothing when a later one has been entered since."""
        if ticket == self._calls:
            self._write(False)

    def at_step(self, step: int) -> None:
        """A step has begun; also a sign of life where nothing is sent."""
        self.step = step
        self._write(False)

    def close(self) -> None:
        self._map.close()

    def _write(self, inside: bool) -> None:
        view, at = self._map, self._at
        with self._lock:
            seq, op, axis, group = self._last
            body = _RECORD.pack(self.rank, self.step, seq, inside, time.monotonic(), op, axis, group)
            self._version = version = self._version + 1
            _VERSION.pack_into(view, at + _HEAD, version)
            view[at + _BODY : at + _CHECK] = body
            _CRC.pack_into(view, at + _CHECK, zlib.crc32(body))
            _VERSION.pack_into(view, at + _TAIL, version)


def read_slots(path: Path | str, world_size: int) -> list[LastCall]:
    """Every rank's last call, by rank. Never blocks a writer; a missing file reads as nothing written."""
    try:
        with open(path, "rb") as file:
            return [_read_one(file.fileno(), rank) for rank in range(world_size)]
    except FileNotFoundError:
        return [LastCall(rank) for rank in range(world_size)]


def _read_one(descriptor: int, rank: int) -> LastCall:
    for attempt in range(_READS_BEFORE_TORN):
        found = parse(os.pread(descriptor, SLOT_BYTES, rank * SLOT_BYTES), rank)
        if not found.torn:
            return found
        time.sleep(0 if attempt < 20 else 0.0005)
    return found


def parse(raw: bytes, rank: int) -> LastCall:
    """One slot's bytes; ``torn`` when the versions differ or the checksum does not fit."""
    if len(raw) < SLOT_BYTES:
        return LastCall(rank, torn=True)
    (head,), (tail,) = _VERSION.unpack_from(raw, _HEAD), _VERSION.unpack_from(raw, _TAIL)
    if head == tail == 0:
        return LastCall(rank)
    body = raw[_BODY:_CHECK]
    if head != tail or zlib.crc32(body) != _CRC.unpack_from(raw, _CHECK)[0]:
        return LastCall(rank, torn=True)
    owner, step, seq, inside, time_s, op, axis, group = _RECORD.unpack(body)
    op, axis, group = (name.rstrip(b"\0").decode(errors="replace") for name in (op, axis, group))
    return LastCall(owner, step, seq, op, axis, group, inside, time_s, head)

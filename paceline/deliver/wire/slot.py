"""Where each rank is right now: one fixed record a rank in a shared file, readable while the rank hangs.

A rank that waits for ever cannot say for what. So before each collective it writes axis, operation and number
into its own slot of a memory-mapped file, and a side process (the launcher) reads them. Nothing is sent and
no
lock is taken: a record carries its own checksum, so a reader that meets a half-written one knows it and reads
again. That a collective is complete is one byte beside the record, the last byte of its ticket: cheap, and
safe to write from a thread of the backend while the rank enters the next one.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from pathlib import Path
from typing import NamedTuple

SLOT_BYTES = 128
_RECORD = struct.Struct("<QQqqqd24s16s24s")  # version, ticket, rank, step, seq, time, op, axis, group
_CHECK, _DONE = _RECORD.size, _RECORD.size + 4
_READS_BEFORE_TORN = 200

assert _DONE < SLOT_BYTES


class LastCall(NamedTuple):
    """The last thing that a rank wrote.

    ``inside`` is true from the call until its completion is known; ``time_s`` is ``time.monotonic`` when the
    call or the step began. ``version`` grows with each call and step, so two reads that agree in ``version``
    and ``inside`` mean that nothing happened between them. A rank that has not written yet has ``version`` 0;
    a record that stayed half-written has ``torn`` set.
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

    @property
    def call(self) -> str:
        """``all_reduce #12 on fsdp (0-3)``; empty before the first."""
        return f"{self.op} #{self.seq} on {self.axis} ({self.group})" if self.op else ""

    def __str__(self) -> str:
        if self.torn:
            return f"rank {self.rank}: its slot is half-written"
        if not self.op:
            return f"rank {self.rank}: no collective yet" + (f", step {self.step}" if self.step else "")
        return f"rank {self.rank}: {'inside' if self.inside else 'after'} {self.call}, step {self.step}"


def create_slots(path: Path | str, world_size: int) -> None:
    """An empty file of ``world_size`` slots; an older one is replaced."""
    Path(path).write_bytes(bytes(SLOT_BYTES * world_size))


class Slot:
    """One rank's record, written by that rank only."""

    def __init__(self, path: Path | str, rank: int) -> None:
        self.path, self.rank, self.step = path, rank, 0
        self._version = self._ticket = 0
        self._last = (0, b"", b"", b"")
        self._names: dict[str, bytes] = {}
        with open(path, "r+b") as file:
            if file.seek(0, os.SEEK_END) < (rank + 1) * SLOT_BYTES:
                raise ValueError(f"{path} has no slot for rank {rank}")
            self._map = mmap.mmap(file.fileno(), 0)
        at = rank * SLOT_BYTES
        self._place = slice(at, at + _DONE)
        self._done_at = at + _DONE

    def call(self, op: str, axis: str, group: str, seq: int) -> int:
        """The rank enters a collective. Returns the ticket to give to :meth:`left`."""
        names = self._names
        try:
            self._last = (seq, names[op], names[axis], names[group])
        except KeyError:
            for name, width in ((op, 24), (axis, 16), (group, 24)):
                names[name] = name.encode()[:width]
            self._last = (seq, names[op], names[axis], names[group])
        self._ticket += 1
        self._write()
        return self._ticket

    def left(self, ticket: int) -> None:
        """That collective is complete. Says nothing when a later one has been entered since."""
        if ticket == self._ticket:
            self._map[self._done_at] = ticket & 0xFF

    def at_step(self, step: int) -> None:
        """A step has begun; also a sign of life where nothing is sent."""
        self.step = step
        self._write()

    def close(self) -> None:
        self._map.close()

    def _write(self) -> None:
        self._version += 1
        record = _RECORD.pack(
            self._version,
            self._ticket,
            self.rank,
            self.step,
            self._last[0],
            time.monotonic(),
            *self._last[1:],
        )
        self._map[self._place] = record + zlib.crc32(record).to_bytes(4, "little")


def read_slots(path: Path | str, world_size: int) -> list[LastCall]:
    """Every rank's last call, by rank. Never blocks a writer; a missing file reads as nothing written."""
    try:
        with open(path, "rb") as file:
            return [_read_one(file.fileno(), rank) for rank in range(world_size)]
    except FileNotFoundError:
        return [LastCall(rank) for rank in range(world_size)]


def _read_one(descriptor: int, rank: int) -> LastCall:
    found = LastCall(rank, torn=True)
    for attempt in range(_READS_BEFORE_TORN):
        found = parse(os.pread(descriptor, SLOT_BYTES, rank * SLOT_BYTES), rank)
        if not found.torn:
            break
        time.sleep(0 if attempt < 20 else 0.0005)
    return found


def parse(raw: bytes, rank: int) -> LastCall:
    """One slot's bytes; ``torn`` when the checksum does not fit."""
    if len(raw) < SLOT_BYTES:
        return LastCall(rank, torn=True)
    record, check = raw[:_CHECK], int.from_bytes(raw[_CHECK:_DONE], "little")
    if not check and not any(record):
        return LastCall(rank)
    if zlib.crc32(record) != check:
        return LastCall(rank, torn=True)
    version, ticket, owner, step, seq, time_s, *names = _RECORD.unpack(record)
    op, axis, group = (name.rstrip(b"\0").decode(errors="replace") for name in names)
    inside = bool(op) and raw[_DONE] != ticket & 0xFF
    return LastCall(owner, step, seq, op, axis, group, inside, time_s, version)

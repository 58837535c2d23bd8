"""What was written is read back while the rest is being written: the disk works in both directions at once.

A part is read after it was made durable and its cached pages were given up, so that what is compared comes from the
disk, as far as the system tells. No torch.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash


@dataclass(frozen=True)
class Block:
    """Bytes of a file with the hash that they must have; ``key`` is the tensor they belong to."""

    start: int
    nbytes: int
    hash: str
    key: str


class ReadBack:
    """Compares blocks of one file, in a thread of its own. The first difference is kept, and told by ``finish``."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._parts: queue.SimpleQueue[Sequence[Block] | None] = queue.SimpleQueue()
        self._wrong: Block | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="paceline-read-back", daemon=True)
        self._thread.start()

    def durable(self, part: Sequence[Block]) -> None:
        """These blocks are on the disk."""
        self._parts.put(list(part))

    def finish(self) -> Block | None:
        """Wait until all was compared; the first block that differs. Raises what kept it from reading."""
        self._parts.put(None)
        self._thread.join()
        os.close(self._fd)
        if self._error is not None:
            raise self._error
        return self._wrong

    def _work(self) -> None:
        while (part := self._parts.get()) is not None:
            if self._wrong is not None or self._error is not None:
                continue
            try:
                self._compare(part)
            except Exception as error:  # whatever it is: what was not compared must not count as right
                self._error = error

    def _compare(self, part: Sequence[Block]) -> None:
        if hasattr(os, "posix_fadvise"):
            end = part[-1].start + part[-1].nbytes
            os.posix_fadvise(self._fd, part[0].start, end - part[0].start, os.POSIX_FADV_DONTNEED)
        for block in part:
            if xxhash.xxh3_128_hexdigest(self._read(block.start, block.nbytes)) != block.hash:
                self._wrong = block
                return

    def _read(self, start: int, nbytes: int) -> memoryview:
        out = memoryview(bytearray(nbytes))
        done = 0
        while done < nbytes:
            got = os.preadv(self._fd, [out[done:]], start + done)
            if got == 0:
                break  # shorter than written: its hash will differ
            done += got
        return out

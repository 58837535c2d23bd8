"""Host memory that two processes see: the trainer fills it with a snapshot, the writer writes it out.

It has no name (``memfd``; elsewhere an unlinked file), so that nothing is left behind however the processes end.
Its pages are asked for before they are used: touching shared memory that the system cannot give is a SIGBUS, and
asking is an error that can be told. No torch.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence

import numpy as np

ALIGN = 64
"""Pieces begin at multiples of this, so that a copy is as fast as between two tensors."""


class Buffer:
    """Shared memory of a size that may grow. ``fd`` is what another process opens it by.

    Args:
        fd: of a buffer that another process made; None makes one, of no size.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _unnamed() if fd is None else fd
        self._map: mmap.mmap | None = None
        self._given = 0

    def reserve(self, nbytes: int) -> None:
        """Make room for so many bytes; what is there already stays.

        Raises:
            OSError: the system has not that much shared memory.
        """
        if nbytes <= self._given:
            return
        # Only new pages are asked for: the system may count those that are there a second time.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.fd, self._given, nbytes - self._given)
        else:
            os.ftruncate(self.fd, nbytes)
        self._given = nbytes

    def bytes(self, start: int, nbytes: int) -> np.ndarray:
        """A view (uint8) of these bytes; it keeps the mapping alive."""
        if nbytes == 0:
            return np.empty(0, np.uint8)
        if self._map is None or len(self._map) < start + nbytes:
            self._map = mmap.mmap(self.fd, os.fstat(self.fd).st_size)
        return np.frombuffer(self._map, np.uint8, nbytes, start)

    def close(self) -> None:
        """Give the memory back, once no view of it is left in any process."""
        self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _unnamed() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("paceline-save")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def offsets(sizes: Sequence[int]) -> list[int]:
    """Where each of these pieces begins in a buffer, and last where the whole ends."""
    found = [0]
    for size in sizes:
        found.append(-(-(found[-1] + size) // ALIGN) * ALIGN)
    return found

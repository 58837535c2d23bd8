"""First pass over the sources: every document once, its hash and size; then which documents are held out.

Held out is what the hash of a document's content says (below ``fraction`` of the range), so a document
stays on its side whatever the layout, the machine or the other documents are, and copies of it go with
it. Of each named source at least one document is held out and at least one is kept, where it has two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.compute.data.documents import Document, Reader, changed
from paceline.compute.data.hashing import hash64, mix_array
from paceline.compute.data.sources import SourceFile
from paceline.ledger.outcome import Exit, Refused

RECORD = np.dtype([("size", "<i8"), ("offset", "<i8"), ("hash", "<u8"), ("file", "<u4"), ("group", "<u4")])
"""A record a document or block; size is bytes of text, or tokens for .npy."""
_FLUSH = 8192


@dataclass
class Scan:
    """What the first pass found; ``records`` is memory-mapped, so memory does not grow with the documents."""

    files: list[SourceFile]
    records: np.ndarray
    reader: Reader
    largest_id: int

    def goes_on(self, number: int) -> bool:
        """Whether the next record is the next block of the same file."""
        if number + 1 >= self.records.size:
            return False
        here, following = self.records[number], self.records[number + 1]
        end = int(here["offset"]) + int(here["size"])
        return bool(here["file"] == following["file"] and end == following["offset"])

    def documents(self, reader: Reader) -> Iterator[tuple[int, Document]]:
        """The documents again, numbered as in ``records``. Raises Refused(20) when a source has changed."""
        number = 0
        for file in self.files:
            for document in reader.read(file):
                same = number < self.records.size and self.records["hash"][number] == document_hash(document)
                if not same or self.records["offset"][number] != document.offset:
                    raise changed(file, reader.key)
                yield number, document
                number += 1
            if number < self.records.size and self.files[self.records["file"][number]] is file:
                raise changed(file, reader.key)


def document_hash(document: Document) -> int:
    """Of the text, or of the ids as little-endian uint32, whatever type their file has."""
    if document.ids is None:
        return hash64(document.text)
    return hash64(np.ascontiguousarray(document.ids, dtype="<u4").tobytes())


def scan(
    files: list[SourceFile], reader: Reader, record_file: Path, tell: Callable[[int, int], None]
) -> Scan:
    """Reads every document once, its record to ``record_file``; ``tell(bytes, documents)`` on the way."""
    done, count, largest = 0, 0, -1
    held: list[tuple[int, int, int, int, int]] = []
    with record_file.open("wb") as out:
        for number, file in enumerate(files):
            for document in reader.read(file):
                if document.ids is not None:
                    largest = max(largest, int(document.ids.max()))
                held.append((document.size, document.offset, document_hash(document), number, file.group))
                count += 1
                if len(held) >= _FLUSH:
                    np.array(held, RECORD).tofile(out)
                    held.clear()
                    tell(done + min(document.offset, file.size_bytes), count)
            done += file.size_bytes
            tell(done, count)
        np.array(held, RECORD).tofile(out)
    if count == 0:
        raise Refused(
            "the sources hold no document",
            exit_code=Exit.DATA,
            key=reader.key,
            seen=f"{len(files)} files; {reader.skipped} bad rows skipped, {reader.empty} empty",
            rule="at least one document must be readable",
            use=f"look at {files[0].path}; or data.text_field = the column with the text",
            where=files[0].path,
        )
    records = np.memmap(record_file, RECORD, "r", shape=(count,))
    return Scan(files, records, reader, largest)


def hold_out(records: np.ndarray, fraction: float) -> np.ndarray:
    """bool[documents]: which are held out. Raises Refused(20) when that would be none or all."""
    held = np.zeros(records.size, bool)
    groups = np.asarray(records["group"])
    for group in np.unique(groups):
        mine = np.flatnonzero(groups == group)
        held[mine] = _hold_out_of(np.asarray(records["hash"][mine]), fraction)
    if not held.any():
        raise Refused(
            "too little data to hold anything out",
            exit_code=Exit.DATA,
            key="data.eval",
            seen=f"{records.size} document(s), size {int(records['size'].sum())}",
            rule="at least one document is held out and one is kept",
            use='more data, or data.eval = "held_out.txt"',
        )
    return held


def _hold_out_of(hashes: np.ndarray, fraction: float) -> np.ndarray:
    if hashes.size < 2:
        return np.zeros(hashes.size, bool)
    lowest, highest = hashes.min(), hashes.max()
    if lowest == highest:  # all contents are equal: only the place in the source can decide
        hashes = mix_array(hashes + np.arange(hashes.size, dtype=np.uint64))
        lowest, highest = hashes.min(), hashes.max()
    held = hashes < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))
    if not held.any():
        held = hashes == lowest
    if held.all():
        held = hashes != highest
    return np.asarray(held)

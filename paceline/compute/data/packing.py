"""Rows of ``sequence_length`` tokens, cut out of the prepared streams without copying them.

- ``concat``: consecutive pieces of the joined documents; every token but a stream's first is predicted
  exactly once.
- ``masked``: the same pieces; attention stays inside a document (``segments``), positions restart with
  each document, and no target crosses a border.
- ``none``: one document a row, padded; a longer document goes on in further rows.

Rows never cross streams (sources). What is not to be predicted has target -100 (torch's
``ignore_index``). Memory does not grow with the data: tokens and document borders are memory-mapped and
found by binary search.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paceline.compute.data.order import Group
from paceline.compute.data.prepared import Prepared, TokenStream
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many

IGNORE = -100
PACKINGS = ("concat", "masked", "none")
_SPARSE = 1024
"""With packing none, the row count is kept for every so many documents; the rest is added up when needed."""


@dataclass(frozen=True)
class Row:
    """One sequence: tokens int64[T], targets int64[T]; with ``masked`` segments and positions int32[T]."""

    tokens: np.ndarray
    targets: np.ndarray
    segments: np.ndarray | None
    positions: np.ndarray | None
    target_bytes: int


class PackedSet:
    """The rows of one split. ``rows`` of them; row ``i`` is always the same row.

    Args:
        prepared: the data.
        split: ``train`` or ``eval``.
        sequence_length: T, tokens a row.
        packing: ``concat``, ``masked`` or ``none``.

    Raises:
        Refused: 20 when there is not one row to train on.
    """

    def __init__(self, prepared: Prepared, split: str, sequence_length: int, packing: str = "concat") -> None:
        if packing not in PACKINGS:
            raise Refused(
                "data.packing is not a way to pack",
                exit_code=Exit.USAGE,
                key="data.packing",
                seen=packing,
                rule="documents are joined, joined and masked, or one a row",
                allowed=", ".join(PACKINGS),
                use='data.packing = "concat"',
            )
        self.prepared, self.split = prepared, split
        self.sequence_length, self.packing = int(sequence_length), packing
        self._lengths = prepared.token_bytes
        self._parts = [_part(stream, self.sequence_length, packing) for stream in prepared.streams(split)]
        self._first_rows = np.concatenate([[0], np.cumsum([part.rows for part in self._parts])])
        self.rows = int(self._first_rows[-1])
        self._check()

    def _check(self) -> None:
        streams = self.prepared.streams(self.split)
        needed = 2 if self.packing == "none" or self.split == "eval" else self.sequence_length + 1
        short = [s for s in streams if s.tokens < needed]
        if self.rows and not (short and self.split == "train"):
            return
        name = short[0].name if short else ""
        raise Refused(
            "the data is too small for one sequence",
            exit_code=Exit.DATA,
            key="data.sequence_length" if self.rows or self.split == "train" else "data.eval",
            seen=f"{many(min(s.tokens for s in streams), 'token')}"
            + (f" in source {name!r}" if name else "")
            + f" to {self.split} on; sequence_length {self.sequence_length}",
            rule=f"a source has at least {needed} tokens (a sequence and the token after it)",
            allowed=f"data.sequence_length <= {max(1, min(s.tokens for s in streams) - 1)}",
            use=f"data.sequence_length = {max(1, min(s.tokens for s in streams) - 1)}, or more data",
            where=str(self.prepared.index["sources"][0]["path"]),
        )

    @cached_property
    def groups(self) -> tuple[Group, ...] | None:
        """The weighted sources as rows, or None where the job gives no weights."""
        streams = self.prepared.streams(self.split)
        if all(stream.weight is None for stream in streams):
            return None
        return tuple(
            Group(s.name, int(first), part.rows, 1.0 if s.weight is None else s.weight)
            for s, part, first in zip(streams, self._parts, self._first_rows, strict=False)
        )

    def _locate(self, row: int) -> tuple[_Part, int]:
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} of {self.rows}")
        number = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        return self._parts[number], row - int(self._first_rows[number])

    def row(self, row: int) -> Row:
        """Row ``row``, 0 <= row < rows."""
        part, local = self._locate(row)
        length = self.sequence_length
        start, end, last = part.span(local)
        raw = part.stream.slice(start, min(end + 1, last))
        tokens = np.zeros(length, np.int64)
        targets = np.full(length, IGNORE, np.int64)
        tokens[: end - start] = raw[: end - start]
        targets[: raw.size - 1] = raw[1:]
        segments = positions = None
        if self.packing == "masked":
            segments, positions = part.borders(start, end, length)
            # the token after a border is another document's first: nothing before it predicts it
            crossing = part.starts_within(start + 1, end + 1) - start - 1
            targets[crossing] = IGNORE
        valid = targets[targets != IGNORE]
        count = 0 if self._lengths is None else int(self._lengths[valid].sum(dtype=np.int64))
        return Row(tokens, targets, segments, positions, count)

    def borders(self, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Where documents begin inside rows that hold several: int64[n] rows, int64[n] columns, at most ``limit``."""
        found = [
            (int(first) + starts // self.sequence_length, starts % self.sequence_length)
            for part, first in zip(self._parts, self._first_rows, strict=False)
            for starts in [part.starts_within(1, part.stream.tokens)[:limit]]
        ]
        rows, columns = (np.concatenate(each)[:limit] for each in zip(*found, strict=True))
        inner = (columns > 0) & (rows < self.rows)
        return rows[inner], columns[inner]

    def valid_tokens(self, rows: np.ndarray) -> np.ndarray:
        """int64[n]: how many targets count in each row, without reading a token."""
        return np.asarray([part.valid(local) for part, local in map(self._locate, rows.tolist())], np.int64)

    @property
    def has_bytes(self) -> bool:
        """Whether ``target_bytes`` means anything: false for ids without a tokenizer."""
        return self._lengths is not None


class _Part:
    """The rows of one stream; ``span(row)`` is (first token, end of inputs, end of what may be predicted)."""

    def __init__(self, stream: TokenStream, length: int) -> None:
        self.stream, self.length = stream, length
        self.rows = max(0, -(-(stream.tokens - 1) // length))

    def span(self, row: int) -> tuple[int, int, int]:
        start = row * self.length
        return start, min(start + self.length, self.stream.tokens), self.stream.tokens

    def valid(self, row: int) -> int:
        start, end, last = self.span(row)
        return min(end, last - 1) - start

    def starts_within(self, first: int, end: int) -> np.ndarray:
        """Document starts in [first, end), apart from the end of the stream."""
        starts = self.stream.starts
        low, high = np.searchsorted(starts, first), np.searchsorted(starts, min(end, self.stream.tokens))
        return np.asarray(starts[low:high])

    def borders(self, start: int, end: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Segment number and position in it, of each token of a row; padding is a segment of its own."""
        inner = np.unique(np.concatenate([self.starts_within(start + 1, end) - start, [end - start]]))
        inner = inner[inner < length]
        marks = np.zeros(length, np.int32)
        marks[inner] = 1
        segments = np.cumsum(marks, dtype=np.int32)
        firsts = np.concatenate([[0], inner])
        positions = np.arange(length, dtype=np.int32) - firsts[segments].astype(np.int32)
        return segments, positions


class _MaskedPart(_Part):
    def valid(self, row: int) -> int:
        start, end, _ = self.span(row)
        return super().valid(row) - self.starts_within(start + 1, end + 1).size


class _SinglePart(_Part):
    """One document a row; document ``d`` of n tokens has ceil((n - 1) / T) rows."""

    def __init__(self, stream: TokenStream, length: int) -> None:
        super().__init__(stream, length)
        counts = [0]
        for first in range(0, stream.documents, _SPARSE):
            counts.append(counts[-1] + int(self._rows_of(first).sum()))
        self._first_rows = np.asarray(counts, np.int64)
        self.rows = counts[-1]

    def _rows_of(self, first: int) -> np.ndarray:
        sizes = np.diff(self.stream.starts[first : first + _SPARSE + 1])
        return np.asarray(-(-(sizes - 1) // self.length))

    def span(self, row: int) -> tuple[int, int, int]:
        block = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        ends = self._first_rows[block] + np.cumsum(self._rows_of(block * _SPARSE))
        inside = int(np.searchsorted(ends, row, side="right"))
        document = block * _SPARSE + inside
        before = int(ends[inside - 1]) if inside else int(self._first_rows[block])
        first, last = int(self.stream.starts[document]), int(self.stream.starts[document + 1])
        start = first + (row - before) * self.length
        return start, min(start + self.length, last), last


def _part(stream: TokenStream, length: int, packing: str) -> _Part:
    return {"concat": _Part, "masked": _MaskedPart, "none": _SinglePart}[packing](stream, length)

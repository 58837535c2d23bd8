"""A prepared folder, read: memory-mapped token streams, their documents, the tokenizer, the hashes.

``index.json`` is written last and names the size and the hash of every other file, so a folder is either
whole or refused. A stream is one split (``train``, ``eval``) of one named source; its tokens lie in
shards, its documents' first tokens in ``starts.bin`` (int64, one more than there are documents).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from paceline.compute.data.hashing import hash_file
from paceline.compute.data.tokens import AnyTokenizer, load
from paceline.ledger.atomic import read_json
from paceline.ledger.outcome import Exit, Refused

SCHEMA = 1
INDEX = "index.json"
DOCUMENT = np.dtype([("bytes", "<i8"), ("offset", "<i8"), ("hash", "<u8"), ("file", "<u4")])
"""A document's record in ``documents.bin``: bytes of text, offset in its file, xxh3-64, its file's number."""


@dataclass(frozen=True)
class TokenStream:
    """The tokens of one split of one source, end to end."""

    folder: Path
    split: str
    name: str
    weight: float | None
    documents: int
    tokens: int
    bytes: int
    dtype: str
    shard_tokens: tuple[int, ...]

    @cached_property
    def _shards(self) -> list[np.ndarray]:
        return [
            np.memmap(self.folder / f"tokens-{n:05d}.bin", self.dtype, "r", shape=(size,))
            for n, size in enumerate(self.shard_tokens)
        ]

    @cached_property
    def _shard_starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.shard_tokens)]).astype(np.int64)

    @cached_property
    def starts(self) -> np.ndarray:
        """int64[documents + 1], memory-mapped: first token of each document, and the end."""
        return np.memmap(self.folder / "starts.bin", "<i8", "r", shape=(self.documents + 1,))

    @cached_property
    def table(self) -> np.ndarray:
        """DOCUMENT[documents], memory-mapped."""
        return np.memmap(self.folder / "documents.bin", DOCUMENT, "r", shape=(self.documents,))

    def slice(self, start: int, end: int) -> np.ndarray:
        """Tokens ``start .. end`` (cut at the end of the stream) as int64, across shards."""
        end = min(end, self.tokens)
        first = int(np.searchsorted(self._shard_starts, start, side="right")) - 1
        pieces = []
        while start < end:
            base = int(self._shard_starts[first])
            piece = self._shards[first][start - base : end - base]
            pieces.append(piece)
            start, first = start + piece.size, first + 1
        if not pieces:
            return np.empty(0, np.int64)
        return np.asarray(pieces[0] if len(pieces) == 1 else np.concatenate(pieces), dtype=np.int64)

    def pieces(self, size: int = 1 << 20, limit: int | None = None) -> Iterator[np.ndarray]:
        """The stream in consecutive slices, for whoever reads all of it."""
        end = self.tokens if limit is None else min(limit, self.tokens)
        for start in range(0, end, size):
            yield self.slice(start, min(start + size, end))


class Prepared:
    """A verified prepared folder. Cheap to open: nothing but the index is read."""

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        self.folder, self.index = folder, index
        self.vocab: int = index["vocab"]
        self.eos: int | None = index["eos"]
        self.hash: str = index["hash"]
        """Of every token, border and the tokenizer: equal folders hold equal data."""
        self._streams = tuple(
            TokenStream(
                folder / entry["folder"],
                entry["split"],
                entry["name"],
                entry["weight"],
                entry["documents"],
                entry["tokens"],
                entry["bytes"],
                index["dtype"],
                tuple(entry["shard_tokens"]),
            )
            for entry in index["streams"]
        )

    @classmethod
    def open(cls, folder: Path | str, *, deep: bool = False) -> Prepared:
        """Opens what :func:`prepare` made; ``deep`` also reads and hashes every file. Raises Refused(20)."""
        folder = Path(folder)
        try:
            index = read_json(folder / INDEX)
            if index["schema"] != SCHEMA:
                raise _damaged(folder, f"schema {index['schema']}; this version reads {SCHEMA}")
            files: dict[str, Any] = index["files"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(folder, f"{INDEX} cannot be read: {error}") from error
        for name, facts in files.items():
            path = folder / name
            size = path.stat().st_size if path.is_file() else None
            if size != facts["bytes"]:
                seen = "is missing" if size is None else f"has {size} bytes"
                raise _damaged(folder, f"{name} {seen}; {facts['bytes']} expected")
            if deep and hash_file(path) != facts["xxh3"]:
                raise _damaged(folder, f"{name} does not have its hash {facts['xxh3']}")
        return cls(folder, index)

    def streams(self, split: str) -> tuple[TokenStream, ...]:
        """The streams of ``train`` or ``eval``, in the order of the job's sources."""
        return tuple(stream for stream in self._streams if stream.split == split)

    @property
    def documents(self) -> int:
        """Train documents."""
        return sum(s.documents for s in self.streams("train"))

    @property
    def tokens(self) -> int:
        """Train tokens, ends of documents included."""
        return sum(s.tokens for s in self.streams("train"))

    @property
    def bytes(self) -> int:
        """Bytes of train text (0 where it is unknown)."""
        return sum(s.bytes for s in self.streams("train"))

    @property
    def eval_documents(self) -> int:
        """Held-out documents."""
        return sum(s.documents for s in self.streams("eval"))

    @property
    def eval_tokens(self) -> int:
        """Held-out tokens, ends of documents included."""
        return sum(s.tokens for s in self.streams("eval"))

    @property
    def eval_bytes(self) -> int:
        """Bytes of held-out text."""
        return sum(s.bytes for s in self.streams("eval"))

    @cached_property
    def token_bytes(self) -> np.ndarray | None:
        """uint32[vocab]: bytes of text that each token stands for; None for ids without a tokenizer."""
        if not self.index["token_bytes"]:
            return None
        return np.fromfile(self.folder / "token_bytes.bin", "<u4")

    @cached_property
    def tokenizer(self) -> AnyTokenizer:
        """The tokenizer that made the tokens. Raises Refused(20) where only ids are known."""
        if self.index["tokenizer"]["file"] is None:
            raise Refused(
                "the data has no tokenizer",
                exit_code=Exit.DATA,
                key="data.tokenizer",
                seen="pre-tokenised sources only",
                rule="text needs the tokenizer that made the ids",
                use='data.tokenizer = "tokenizer.json"',
            )
        return load(self.folder / self.index["tokenizer"]["file"], self.index["tokenizer"]["name"])

    def document_id(self, stream: TokenStream, number: int) -> str:
        """The stable id of a document: its file and the offset in it."""
        record = stream.table[number]
        return f"{self.index['sources'][int(record['file'])]['path']}@{int(record['offset'])}"


def _damaged(folder: Path, what: str) -> Refused:
    return Refused(
        "prepared data is damaged",
        exit_code=Exit.DATA,
        key="data.train",
        seen=f"{folder}: {what}",
        rule="a prepared folder holds every file of its index, with its size",
        use=f"rm -r {folder} (the next run prepares it again)",
        where=str(folder),
    )

"""Documents, one at a time, out of text, .jsonl and pre-tokenised .npy files, in bounded memory.

A document's stable id is its file and the offset in it (bytes; tokens for .npy). What cannot be read is
refused with file, byte offset and line; with ``data.bad_row = "skip"`` it is left out and counted, before
any rank starts, so that all ranks keep equal step counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from paceline.compute.data.sources import SourceFile
from paceline.ledger.outcome import Exit, Refused

MAX_ROW_BYTES = 16 * 1024 * 1024
_NPY_TYPES = ("uint8", "uint16", "int32", "uint32", "int64")
_NPY_BLOCK_TOKENS = 16 * 1024
_NPY_CHUNK_TOKENS = 1 << 20
_WHOLE_FILE_TOKENS = 4 << 20
"""A longer .npy file without ends of documents is cut, whether or not it is the only one."""
_SHOWN_ROWS = 20


@dataclass(slots=True)
class Document:
    """A document or a block of one: ``text`` (UTF-8, never empty) or ``ids`` (tokens), and where it stood."""

    offset: int
    text: bytes = b""
    ids: np.ndarray | None = None

    @property
    def size(self) -> int:
        """Bytes of text, or tokens."""
        return len(self.text) if self.ids is None else self.ids.size


@dataclass
class Reader:
    """How rows are read, and what was left out so far."""

    key: str = "data.train"
    text_field: str = "text"
    skip_bad: bool = False
    vocab: int | None = None
    """Ids of .npy files must be below it, where it is known."""
    eos: int | None = None
    skipped: int = 0
    empty: int = 0
    skipped_at: list[str] = field(default_factory=list)

    def read(self, file: SourceFile) -> Iterator[Document]:
        """The documents of one file, in file order. Raises Refused(20)."""
        try:
            if file.kind == "npy":
                yield from self._npy(file)
            elif file.kind == "jsonl":
                with open(file.path, "rb") as opened:
                    yield from self._jsonl(file, opened)
            else:
                with open(file.path, "rb") as opened:
                    yield from self._text(file, opened)
        except OSError as error:  # of this file alone: what a consumer does is not raised in here
            raise changed(file, self.key, error.strerror or str(error)) from error

    def _text(self, file: SourceFile, opened: BinaryIO) -> Iterator[Document]:
        offset, lines = 0, 1
        for block in _blocks(opened, file.blocks or max(file.size_bytes, 1)):
            try:
                block.decode("utf-8")
            except UnicodeDecodeError as error:
                line = lines + block.count(b"\n", 0, error.start)
                self._bad_text(file, offset + error.start, line, block[error.start], error.reason)
            else:
                yield Document(offset, block)
            offset += len(block)
            lines += block.count(b"\n")

    def _bad_text(self, file: SourceFile, offset: int, line: int, byte: int, reason: str) -> None:
        self._bad(
            "not valid UTF-8",
            seen=f"byte 0x{byte:02x} at offset {offset}, line {line} ({reason})",
            where=f"{file.path}:{line}",
            rule="text is UTF-8",
            use=f"iconv -f latin1 -t utf-8 {file.path} > fixed.txt (if it is Latin-1)",
        )

    def _jsonl(self, file: SourceFile, opened: BinaryIO) -> Iterator[Document]:
        offset, number = 0, 0
        while row := opened.readline(MAX_ROW_BYTES + 1):
            number += 1
            start, offset = offset, offset + len(row)
            where = f"{file.path}:{number}"
            if len(row) > MAX_ROW_BYTES:
                seen = f"more than {MAX_ROW_BYTES} bytes"
                raise self._refusal("a row is too long", seen, where, "a row is one line of bounded length")
            if not row.strip():
                continue
            text = self._field(row, where)
            if text:
                yield Document(start, text)
            elif text is not None:
                self.empty += 1

    def _field(self, row: bytes, where: str) -> bytes | None:
        """The text of one row as UTF-8, or None where the row is bad and skipped."""
        rule = f"each line is a JSON object with a text in its field {self.text_field!r}"
        try:
            return _text_of(row, self.text_field)
        except _BadRow as bad:
            self._bad(bad.what, bad.seen, where, rule, bad.use)
            return None

    def _npy(self, file: SourceFile) -> Iterator[Document]:
        ids = self._open_npy(file)
        chunks = range(0, ids.size, _NPY_CHUNK_TOKENS)
        has_eos = self.eos is not None and any(
            (ids[at : at + _NPY_CHUNK_TOKENS] == self.eos).any() for at in chunks
        )
        cut = file.blocks > 0 or ids.size > _WHOLE_FILE_TOKENS
        block = min(_NPY_BLOCK_TOKENS, max(2, -(-ids.size // 16)))
        for start, end in _npy_borders(ids, self.eos if has_eos else None, block if cut else ids.size):
            piece = np.asarray(ids[start:end]).astype(np.int64)
            bad = piece < 0
            if self.vocab is not None:
                bad |= piece >= self.vocab
            if bad.any():
                at = int(np.flatnonzero(bad)[0])
                self._bad_id(file, start + at, int(piece[at]))
            else:
                yield Document(start, ids=piece)

    def _open_npy(self, file: SourceFile) -> np.ndarray:
        rule = f"a pre-tokenised source is a one-dimensional .npy array of {', '.join(_NPY_TYPES)}"
        with open(file.path, "rb"):
            pass  # a file that is gone is another matter than one that is no array
        try:
            ids: np.ndarray = np.load(file.path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise self._refusal("not a readable .npy array", str(error), file.path, rule) from error
        if ids.ndim != 1 or ids.dtype.name not in _NPY_TYPES:
            raise self._refusal(
                "not an array of token ids",
                f"{ids.dtype.name}{list(ids.shape)}",
                file.path,
                rule,
                "np.save('tokens.npy', ids.reshape(-1).astype('uint32'))",
            )
        if ids.size == 0:
            raise self._refusal("an array without tokens", "0 tokens", file.path, rule)
        return ids

    def _bad_id(self, file: SourceFile, index: int, value: int) -> None:
        self._bad(
            "a token id is outside the vocabulary",
            seen=f"id {value} at index {index}; vocabulary {self.vocab}",
            where=f"{file.path}[{index}]",
            rule="0 <= id < vocabulary of data.tokenizer (or model.vocab_size)",
            use="data.tokenizer = the tokenizer.json that made the file"
            if value >= 0
            else "save the ids as unsigned integers",
        )

    def _bad(self, what: str, seen: str, where: str, rule: str, use: str = "") -> None:
        """Refuses, or counts what is skipped."""
        if not self.skip_bad:
            raise self._refusal(what, seen, where, rule, use or 'mend the row, or data.bad_row = "skip"')
        self.skipped += 1
        if len(self.skipped_at) < _SHOWN_ROWS:
            self.skipped_at.append(f"{where}: {what}")

    def _refusal(self, what: str, seen: str, where: str, rule: str, use: str = "") -> Refused:
        return Refused(
            what,
            exit_code=Exit.DATA,
            key=self.key,
            seen=f"{where}: {seen}",
            rule=rule,
            use=use or f"leave {where} out of {self.key}",
            where=where,
        )


def changed(file: SourceFile, key: str, reason: str = "") -> Refused:
    """A source that was readable when the preparation began is another now, or gone."""
    return Refused(
        "a source changed while it was being prepared",
        exit_code=Exit.DATA,
        key=key,
        seen=f"{file.path}: {reason}" if reason else file.path,
        rule="sources stand still while they are read",
        use="run again when nothing writes to it, moves it or takes it away",
        where=file.path,
    )


class _BadRow(Exception):
    def __init__(self, what: str, seen: str, use: str = "") -> None:
        super().__init__(what)
        self.what, self.seen, self.use = what, seen, use


def _text_of(row: bytes, text_field: str) -> bytes:
    try:
        parsed: Any = json.loads(row.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _BadRow("a row is not valid UTF-8", f"byte {error.start} of the line") from error
    except (ValueError, RecursionError) as error:
        raise _BadRow("a row is not JSON", f"{_shown(row)} ({error})") from error
    if not isinstance(parsed, dict):
        raise _BadRow("a row is not an object", _shown(row))
    if text_field not in parsed:
        raise _BadRow(f"a row has no {text_field!r}", f"fields {sorted(parsed)}", _field_repair(parsed))
    value = parsed[text_field]
    if not isinstance(value, str):
        raise _BadRow(f"{text_field!r} is not a text", _shown(repr(value).encode()))
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _BadRow("a row holds half of a surrogate pair", f"character {error.start}") from error


def _shown(row: bytes) -> str:
    text = row.decode("utf-8", "replace").strip()
    return text if len(text) <= 60 else text[:57] + "…"


def _field_repair(parsed: dict[str, Any]) -> str:
    if "messages" in parsed or {"prompt", "completion"} <= parsed.keys():
        return "chat columns (messages, prompt and completion) arrive with capability 06; use a text column"
    texts = [name for name, value in parsed.items() if isinstance(value, str)]
    return f'data.text_field = "{max(texts, key=lambda name: len(parsed[name]))}"' if texts else ""


def _blocks(opened: BinaryIO, block: int) -> Iterator[bytes]:
    """Pieces of at most ``block`` bytes that end at the border of a UTF-8 character."""
    held = b""
    while True:
        held += opened.read(block + 1 - len(held))
        if len(held) <= block:
            if held:
                yield held
            return
        cut = block
        while cut > block - 4 and cut > 1 and held[cut] & 0xC0 == 0x80:
            cut -= 1
        yield held[:cut]
        held = held[cut:]


def _npy_borders(ids: np.ndarray, eos: int | None, block: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each document: up to and with each ``eos``; pieces of ``block`` where there is none."""
    if eos is None:
        for start in range(0, ids.size, block):
            yield start, min(start + block, ids.size)
        return
    start = 0
    for at in range(0, ids.size, _NPY_CHUNK_TOKENS):
        for end in (np.flatnonzero(ids[at : at + _NPY_CHUNK_TOKENS] == eos) + at + 1).tolist():
            yield start, end
            start = end
    if start < ids.size:
        yield start, ids.size

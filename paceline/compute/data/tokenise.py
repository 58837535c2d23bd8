"""Second pass over the sources: train the tokenizer where the job asks for one, then every document to
tokens.

Text goes in batches of about 1 MiB to a small pool of threads; the `tokenizers` library releases the lock
and spreads each batch over its own threads, so nothing is forked and a killed preparation leaves no
process behind. Batches come back in the order of the documents: the result does not depend on the number
of workers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.compute.data import tokens
from paceline.compute.data.documents import Document
from paceline.compute.data.hashing import mix_array
from paceline.compute.data.scan import Scan
from paceline.compute.data.shards import StreamWriter
from paceline.compute.data.sources import SourceItem
from paceline.ledger.outcome import Exit, Refused

Progress = Callable[[dict[str, Any]], None]
"""Told {stage: read|tokenizer|tokenise, done_bytes, total_bytes, documents, tokens} now and then."""

BPE_TRAIN_BYTES = 256 * 1024 * 1024
"""Of more text than this, a sample of the train documents, chosen by hash, trains the tokenizer."""
_BATCH_BYTES = 1 << 20
_BATCH_DOCUMENTS = 1024
_SAY_EVERY_S = 0.1
_SAMPLE_KEY = np.uint64(0x5A3D)


@dataclass
class Teller:
    """Passes progress on, at most ten times a second, and the first and last of each stage always."""

    progress: Progress | None
    total_bytes: int
    _said_s: float = field(default=0.0, init=False)
    _stage: str = field(default="", init=False)

    def tell(self, stage: str, done_bytes: int, documents: int, tokens: int = 0) -> None:
        """One more piece of work is done."""
        now = time.monotonic()
        due = now - self._said_s >= _SAY_EVERY_S or done_bytes >= self.total_bytes or stage != self._stage
        if self.progress is None or not due:
            return
        self._said_s, self._stage = now, stage
        row = {"stage": stage, "done_bytes": done_bytes, "total_bytes": self.total_bytes}
        self.progress({**row, "documents": documents, "tokens": tokens})


@dataclass
class Part:
    """One scanned source list. ``held`` marks what goes to eval; None where all of it goes to ``split``."""

    scan: Scan
    items: tuple[SourceItem, ...]
    split: str
    first_file: int = 0
    held: np.ndarray | None = None

    def documents(self, eos: int | None, vocab: int | None) -> Iterator[tuple[int, Document]]:
        """The documents again, checked against the first pass."""
        again = replace(self.scan.reader, skipped=0, empty=0, skipped_at=[], eos=eos, vocab=vocab)
        return self.scan.documents(again)

    def goes_on(self, number: int, document: Document, eos: int | None) -> bool:
        """Whether the document continues in the next block, and that one goes to the same split."""
        if document.ids is not None and document.ids[-1] == eos:
            return False
        return self.scan.goes_on(number) and self.split_of(number) == self.split_of(number + 1)

    def split_of(self, number: int) -> str:
        """Where the document goes."""
        return "eval" if self.held is not None and self.held[number] else self.split


def train_tokenizer(parts: list[Part], size: int, teller: Teller) -> tuple[tokens.FastTokenizer, int]:
    """``bpe:size`` on the train documents alone, and the bytes of text that it was trained on."""
    part = parts[0]
    records = part.scan.records
    wanted = np.ones(records.size, bool) if part.held is None else ~part.held
    total = int(records["size"][wanted].sum())
    if total > BPE_TRAIN_BYTES:
        threshold = np.uint64(int(BPE_TRAIN_BYTES / total * 2.0**64))
        sampled = wanted & (mix_array(records["hash"] ^ _SAMPLE_KEY) < threshold)
        wanted = sampled if sampled.any() else wanted
    seen = 0

    def texts() -> Iterator[str]:
        nonlocal seen
        for number, document in part.documents(None, None):
            if wanted[number]:
                yield document.text.decode("utf-8")
                seen += len(document.text)
                teller.tell("tokenizer", seen, number + 1)

    return tokens.train_bpe(texts(), size), seen


def tokenise(
    folder: Path,
    parts: list[Part],
    tokenizer: tokens.AnyTokenizer | None,
    dtype: str,
    teller: Teller,
    workers: int,
) -> tuple[list[StreamWriter], bool]:
    """Writes every document into its stream of ``folder``.

    Returns:
        the writers, still open, train first; and whether token byte lengths add up to the text's bytes.
    """
    eos = tokenizer.eos if tokenizer else None
    vocab = tokenizer.vocab if tokenizer else None
    lengths = tokenizer.byte_lengths() if tokenizer else None
    writers: dict[tuple[str, int], StreamWriter] = {}
    exact, done, count, made = lengths is not None, 0, 0, 0
    for part in parts:
        for split in ("train", "eval") if part.held is not None else (part.split,):
            for group, item in enumerate(part.items):
                writer = StreamWriter(folder, group, split, item.name, item.weight, dtype, eos)
                writers[split, group] = writer
        for number, document, ids in _encoded(part.documents(eos, vocab), tokenizer, workers):
            record = part.scan.records[number]
            size = len(document.text)
            if lengths is not None:
                measured = int(lengths[ids].sum())
                exact = exact and (document.ids is not None or measured == size)
                size = size or measured
            writers[part.split_of(number), int(record["group"])].add(
                ids,
                text=document.ids is None,
                size_bytes=size,
                offset=document.offset,
                hash_=int(record["hash"]),
                file=part.first_file + int(record["file"]),
                goes_on=part.goes_on(number, document, eos),
            )
            done, count, made = done + size, count + 1, made + ids.size
            teller.tell("tokenise", min(done, teller.total_bytes - 1), count, made)
    teller.tell("tokenise", teller.total_bytes, count, made)
    return [writers[key] for key in sorted(writers, key=lambda key: (key[0] == "eval", key[1]))], exact


_Encoded = tuple[list[tuple[int, Document]], Future[list[np.ndarray]]]


def _encoded(
    documents: Iterator[tuple[int, Document]], tokenizer: tokens.AnyTokenizer | None, workers: int
) -> Iterator[tuple[int, Document, np.ndarray]]:
    """Documents with their ids, in order; at most ``workers + 1`` batches are held at once."""
    waiting: deque[_Encoded] = deque()

    def drain(left: int) -> Iterator[tuple[int, Document, np.ndarray]]:
        while len(waiting) > left:
            batch, future = waiting.popleft()
            for (number, document), ids in zip(batch, future.result(), strict=True):
                yield number, document, ids

    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="tokenise") as pool:
        try:
            for batch in _batches(documents):
                waiting.append((batch, pool.submit(_encode, batch, tokenizer)))
                yield from drain(workers)
            yield from drain(0)
        finally:
            pool.shutdown(cancel_futures=True)


def _batches(documents: Iterator[tuple[int, Document]]) -> Iterator[list[tuple[int, Document]]]:
    batch: list[tuple[int, Document]] = []
    size = 0
    for entry in documents:
        batch.append(entry)
        ids = entry[1].ids
        size += len(entry[1].text) if ids is None else ids.nbytes
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encode(batch: list[tuple[int, Document]], tokenizer: tokens.AnyTokenizer | None) -> list[np.ndarray]:
    texts = [document.text for _, document in batch if document.ids is None]
    encoded = iter(tokenizer.encode_batch(texts) if texts and tokenizer else ())
    return [document.ids if document.ids is not None else next(encoded) for _, document in batch]


def check_model_vocab(vocab: int, model_vocab: int | None) -> None:
    """The embedding may be larger than the tokenizer (padding), never smaller. Raises Refused(20)."""
    if model_vocab is not None and model_vocab < vocab:
        raise Refused(
            "model.vocab_size is smaller than the tokenizer's vocabulary",
            exit_code=Exit.DATA,
            key="model.vocab_size",
            seen=f"model.vocab_size = {model_vocab}; ids up to {vocab - 1}",
            rule="every token id needs a row of the embedding; rows above are padding and stay",
            allowed=f"model.vocab_size >= {vocab}",
            use=f"model.vocab_size = {vocab}, or leave it out",
        )

"""Tokenises a job's text once, into a folder named by its content; later runs find it.

First pass: hash each document and decide the hold-out (:mod:`scan`). Second: train the tokenizer where
the job asks for one, and tokenise (:mod:`tokenise`). Memory is bounded by a few batches of text. The
folder's name comes from the sources' paths and contents, the tokenizer and the hold-out; a note beside it
spares the first pass while paths, sizes and times are unchanged.
"""

from __future__ import annotations

import errno
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from paceline.compute.data import shards
from paceline.compute.data.documents import Reader
from paceline.compute.data.hashing import hash_names
from paceline.compute.data.prepared import SCHEMA, Prepared
from paceline.compute.data.scan import Scan, hold_out, scan
from paceline.compute.data.sources import refuse_same_files, resolve
from paceline.compute.data.spec import DEFAULT_TOKENIZER, DataSpec, given_tokenizer
from paceline.compute.data.tokenise import (
    Part,
    Progress,
    Teller,
    check_model_vocab,
    tokenise,
    train_tokenizer,
)
from paceline.compute.data.tokens import bpe_size
from paceline.ledger.atomic import read_json_or, write_json
from paceline.ledger.outcome import Exit, Failed, Refused

_UNSETTLED_NS = 2_000_000_000
"""A file written this shortly before may change again within the grain of its time stamp: no note is left."""


def prepare(
    spec: DataSpec, cache: Path | str, *, progress: Progress | None = None, workers: int = 2
) -> Prepared:
    """The prepared folder of this data: found, or made. A damaged one is made again.

    Args:
        spec: what to prepare.
        cache: the folder of prepared folders; made if needed.
        progress: told how far it is.
        workers: batches of text tokenised at once.

    Raises:
        Refused: 20 when the data cannot be used (file and place named), 2 for what has not arrived, 11 when
            the disk is too small.
        Failed: 11 when the disk ran full, 55 when the cache cannot be written.
    """
    cache = Path(cache)
    started_ns = time.time_ns()
    work = _Preparation(spec, cache, progress, max(1, workers))
    try:
        cache.mkdir(parents=True, exist_ok=True)
        note = cache / f"quick-{work.quick_key()}.json"
        known = read_json_or(note, {})
        found = _open_whole(cache / str(known.get("folder"))) if known.get("schema") == SCHEMA else None
        if found is not None:
            return found
        shards.remove_leftovers(cache)
        made = work.make()
        if max(file.mtime_ns for file in work.files) < started_ns - _UNSETTLED_NS:
            write_json(note, {"schema": SCHEMA, "folder": made.folder.name})
        return made
    except BrokenPipeError:
        raise  # of whoever is told the progress: no file of ours is a pipe
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise Failed(
            "the prepared data cannot be written",
            exit_code=Exit.MEMORY if full else Exit.STORE,
            key="data.train",
            seen=str(error),
            rule="the cache must be writable and have room for the tokens",
            use=f"free some space in {cache}, or make it writable",
            where=str(cache),
        ) from error


def _open_whole(folder: Path) -> Prepared | None:
    """The folder, or None where it is absent or damaged."""
    try:
        return Prepared.open(folder)
    except Refused:
        return None


class _Preparation:
    """One request, resolved: its files, its tokenizer if that exists already, and its names."""

    def __init__(self, spec: DataSpec, cache: Path, progress: Progress | None, workers: int) -> None:
        self.spec, self.cache, self.workers = spec, cache, workers
        self.eval_items = spec.eval if isinstance(spec.eval, tuple) else ()
        skip = spec.bad_row == "skip"
        by_fraction = not self.eval_items
        self.train_files = resolve(spec.train, key="data.train", skip_empty=skip, hold_out=by_fraction)
        self.eval_files = (
            [] if by_fraction else resolve(self.eval_items, key="data.eval", skip_empty=skip, hold_out=False)
        )
        refuse_same_files(self.train_files, self.eval_files)
        self.files = self.train_files + self.eval_files
        self.teller = Teller(progress, sum(file.size_bytes for file in self.files))
        self.tokenizer = given_tokenizer(spec.tokenizer)
        self.ids_only = self._only_ids()

    def _only_ids(self) -> bool:
        """Whether all sources are ids that no tokenizer explains. Refuses ids beside a trained tokenizer."""
        ids = [file for file in self.files if file.kind == "npy"]
        if not ids or self.tokenizer is not None:
            return False
        if len(ids) < len(self.files):
            raise Refused(
                "token ids beside text need the tokenizer that made them",
                exit_code=Exit.DATA,
                key="data.tokenizer",
                seen=f"{ids[0].path} and data.tokenizer = {self.spec.tokenizer or DEFAULT_TOKENIZER}",
                rule="a tokenizer trained on the text gives other ids",
                use='data.tokenizer = "path/to/tokenizer.json"',
                where=ids[0].path,
            )
        return True

    def _rules(self) -> list[str]:
        spec = self.spec
        name = "ids" if self.ids_only else str(spec.tokenizer or DEFAULT_TOKENIZER)
        tokenizer = self.tokenizer.to_json() if self.tokenizer else name
        held_out = str(spec.eval) if isinstance(spec.eval, float) else "source"
        items = [f"{item.name}={item.weight}" for item in (*spec.train, *self.eval_items)]
        return [str(SCHEMA), tokenizer, held_out, spec.text_field, spec.bad_row, str(spec.vocab_size), *items]

    def quick_key(self) -> str:
        """Names the request without reading a source."""
        facts = (f"{f.path}\0{f.size_bytes}\0{f.mtime_ns}\0{f.group}" for f in self.files)
        return hash_names([*self._rules(), str(len(self.train_files)), *facts])

    def _content_key(self, parts: list[Part]) -> str:
        paths = [f"{f.path}\0{f.group}" for f in self.files]
        return hash_names([*self._rules(), *paths, *(_content_hash(part.scan) for part in parts)])

    def make(self) -> Prepared:
        """Both passes. Whatever happens, the cache then holds the whole folder or nothing of it."""
        folder = shards.part_folder(self.cache)
        try:
            parts = self._read(folder)
            target = self.cache / self._content_key(parts)
            found = _open_whole(target)
            if found is not None:
                return found
            shutil.rmtree(target, ignore_errors=True)
            self._write(folder, parts, target)
            return Prepared.open(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _read(self, folder: Path) -> list[Part]:
        spec, teller = self.spec, self.teller
        first = scan(
            self.train_files,
            self._reader("data.train"),
            folder / "train.records",
            lambda done, count: teller.tell("read", done, count),
        )
        if isinstance(spec.eval, float):
            return [Part(first, spec.train, "train", held=hold_out(first.records, spec.eval))]
        before, documents = sum(file.size_bytes for file in self.train_files), first.records.size
        second = scan(
            self.eval_files,
            self._reader("data.eval"),
            folder / "eval.records",
            lambda done, count: teller.tell("read", before + done, documents + count),
        )
        held_out = Part(second, self.eval_items, "eval", first_file=len(self.train_files))
        return [Part(first, spec.train, "train"), held_out]

    def _reader(self, key: str) -> Reader:
        known = self.tokenizer.vocab if self.tokenizer else self.spec.vocab_size if self.ids_only else None
        eos = self.tokenizer.eos if self.tokenizer else None
        return Reader(key, self.spec.text_field, self.spec.bad_row == "skip", known, eos)

    def _write(self, folder: Path, parts: list[Part], target: Path) -> None:
        tokenizer, trained_on = self.tokenizer, 0
        if tokenizer is None and not self.ids_only:
            size = bpe_size(self.spec.tokenizer or DEFAULT_TOKENIZER)
            assert size is not None
            tokenizer, trained_on = train_tokenizer(parts, size, self.teller)
        largest = max(part.scan.largest_id for part in parts)
        vocab = tokenizer.vocab if tokenizer else self.spec.vocab_size or largest + 1
        check_model_vocab(vocab, self.spec.vocab_size)
        dtype = "<u2" if vocab <= 1 << 16 else "<u4"
        self._check_room(parts, np.dtype(dtype).itemsize)
        writers, exact = tokenise(folder, parts, tokenizer, dtype, self.teller, self.workers)
        hashes = {name: value for writer in writers for name, value in writer.close().items()}
        for leftover in folder.glob("*.records"):
            leftover.unlink()
        facts = {
            "vocab": vocab,
            "eos": tokenizer.eos if tokenizer else None,
            "dtype": dtype,
            "streams": [writer.entry() for writer in writers],
            **{f"{split}_{what}": count for (split, what), count in _totals(writers).items()},
            **self._provenance(parts),
            "tokenizer": {
                "name": self.spec.tokenizer or (None if self.ids_only else DEFAULT_TOKENIZER),
                "file": "tokenizer.json" if tokenizer else None,
                "trained_on_bytes": trained_on,
            },
            "token_bytes": tokenizer is not None,
            "token_bytes_exact": exact,
        }
        if tokenizer is not None:
            lengths = tokenizer.byte_lengths()
            for name, content in (
                ("tokenizer.json", tokenizer.to_json().encode()),
                ("token_bytes.bin", lengths.astype("<u4").tobytes()),
            ):
                hashes[name] = shards.write_synced(folder / name, content)
        facts["tokenizer"]["hash"] = hashes.get("tokenizer.json")
        facts["hash"] = hash_names(f"{name}={hashes[name]}" for name in sorted(hashes))
        shards.finish(folder, facts, hashes, target)

    def _provenance(self, parts: list[Part]) -> dict[str, Any]:
        readers = [part.scan.reader for part in parts]
        spec = self.spec
        return {
            "sources": [
                {"path": f.path, "kind": f.kind, "bytes": f.size_bytes, "block_bytes": f.blocks}
                for f in self.files
            ],
            "sources_hash": hash_names(_content_hash(part.scan) for part in parts),
            "hold_out": {"fraction": spec.eval} if isinstance(spec.eval, float) else {"source": True},
            "eval_documents_also_in_train": _overlap(parts),
            "skipped_rows": sum(reader.skipped for reader in readers),
            "skipped_at": [place for reader in readers for place in reader.skipped_at],
            "empty_rows": sum(reader.empty for reader in readers),
            "text_field": spec.text_field,
        }

    def _check_room(self, parts: list[Part], token_bytes: int) -> None:
        """An upper bound: as many tokens as bytes, and the table of documents."""
        documents = sum(part.scan.records.size for part in parts)
        need = self.teller.total_bytes * token_bytes + documents * 48 + (1 << 20)
        free = shutil.disk_usage(self.cache).free
        if free < need:
            raise Refused(
                "the prepared data may not fit on the disk",
                exit_code=Exit.MEMORY,
                key="data.train",
                seen=f"{free / 2**30:.1f} GiB free in {self.cache}",
                rule=f"up to {need / 2**30:.1f} GiB of tokens are written",
                use=f"free some space in {self.cache}",
                where=str(self.cache),
            )


def _content_hash(found: Scan) -> str:
    """Of every document's size, place and content."""
    return hash_names(
        found.records[at : at + (1 << 16)].tobytes().hex() for at in range(0, found.records.size, 1 << 16)
    )


def _overlap(parts: list[Part]) -> int:
    """Documents of a separate eval source that stand in train too, word for word."""
    if len(parts) < 2:
        return 0
    return int(np.isin(parts[1].scan.records["hash"], parts[0].scan.records["hash"]).sum())


def _totals(writers: list[shards.StreamWriter]) -> dict[tuple[str, str], int]:
    totals: dict[tuple[str, str], int] = {}
    for writer in writers:
        for what in ("documents", "tokens", "bytes"):
            at = (writer.split, what)
            totals[at] = totals.get(at, 0) + int(getattr(writer, what))
    return totals

"""Preparation: equal bits each time, found again, whole or absent after a kill, every refusal before it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.compute.data import prepare as preparing
from paceline.compute.data import tokenise
from paceline.compute.data.prepare import prepare
from paceline.compute.data.prepared import Prepared
from paceline.compute.data.sources import SourceItem
from paceline.compute.data.spec import DataSpec
from paceline.compute.data.tokens import ByteTokenizer, train_bpe
from paceline.ledger.outcome import Exit, Failed, Refused

from .conftest import text_of

Make = Callable[..., Prepared]


def content(folder: Path) -> dict[str, str]:
    """Hash of every file but what is measured later."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "baseline.json"
    }


def texts_of(prepared: Prepared, split: str) -> list[str]:
    found = []
    for stream in prepared.streams(split):
        for number in range(stream.documents):
            ids = stream.slice(int(stream.starts[number]), int(stream.starts[number + 1]))
            assert ids[-1] == prepared.eos
            found.append(prepared.tokenizer.decode(ids[:-1].tolist()))
    return found


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_every_document_is_there_once_on_one_side(corpus: Path, prepared_of: Make, tokenizer: str) -> None:
    prepared = prepared_of(str(corpus / "*.txt"), tokenizer=tokenizer)
    train, held_out = texts_of(prepared, "train"), texts_of(prepared, "eval")
    assert sorted(train + held_out) == sorted(path.read_text() for path in corpus.iterdir())
    assert len(train) == prepared.documents
    assert len(held_out) == prepared.eval_documents > 0
    assert prepared.bytes == sum(len(text.encode()) for text in train)
    assert prepared.eval_bytes == sum(len(text.encode()) for text in held_out)
    assert prepared.index["token_bytes_exact"] is True
    assert prepared.tokens == sum(stream.tokens for stream in prepared.streams("train"))


def test_twice_is_bit_equal_and_workers_do_not_matter(corpus: Path, tmp_path: Path) -> None:
    spec = DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bpe:300")
    one = prepare(spec, tmp_path / "one", workers=1)
    two = prepare(spec, tmp_path / "two", workers=3)
    assert content(one.folder) == content(two.folder)
    assert one.folder.name == two.folder.name
    assert one.hash == two.hash


def test_the_tokenizer_never_sees_what_is_held_out(corpus: Path, tmp_path: Path) -> None:
    before = prepare(DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bpe:300"), tmp_path / "a")
    held_out = texts_of(before, "eval")
    for path in corpus.iterdir():
        if path.read_text() in held_out:
            path.unlink()
    kept = sorted(corpus.iterdir())
    trained = train_bpe((path.read_text() for path in kept), 300)
    assert before.tokenizer.to_json() == trained.to_json()


def test_found_again_without_reading_and_made_again_after_a_change(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in corpus.iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))
    spec = DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bytes")
    first = prepare(spec, tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "scan", None)
        assert prepare(spec, tmp_path / "cache").folder == first.folder
    os.utime(corpus / "00.txt")  # another time, the same content: read, then found
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "tokenise", None)
        assert prepare(spec, tmp_path / "cache").folder == first.folder
    old = (corpus / "00.txt").read_bytes()
    (corpus / "00.txt").write_bytes(b"Z" + old[1:])  # the same size
    assert prepare(spec, tmp_path / "cache").hash != first.hash


def test_a_file_changed_within_the_grain_of_its_time_stamp_is_seen(corpus: Path, tmp_path: Path) -> None:
    spec = DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bytes")
    first = prepare(spec, tmp_path / "cache")
    status = (corpus / "01.txt").stat()
    old = (corpus / "01.txt").read_bytes()
    (corpus / "01.txt").write_bytes(b"Z" + old[1:])
    os.utime(corpus / "01.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert prepare(spec, tmp_path / "cache").hash != first.hash


def test_a_damaged_folder_is_refused_by_a_rank_and_made_again_by_the_next_run(
    corpus: Path, tmp_path: Path
) -> None:
    for path in corpus.iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))
    spec = DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bytes")
    first = prepare(spec, tmp_path / "cache")
    whole = content(first.folder)
    shard = first.folder / "train-0" / "tokens-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(Refused) as caught:
        Prepared.open(first.folder)
    assert caught.value.exit_code == Exit.DATA
    assert "tokens-00000.bin" in caught.value.seen
    assert content(prepare(spec, tmp_path / "cache").folder) == whole
    flipped = bytearray(shard.read_bytes())
    flipped[10] ^= 1
    shard.write_bytes(flipped)
    Prepared.open(first.folder)
    with pytest.raises(Refused, match="damaged"):
        Prepared.open(first.folder, deep=True)
    (first.folder / "index.json").write_text("{")
    assert content(prepare(spec, tmp_path / "cache").folder) == whole


KILLED = """
import sys
from paceline.compute.data.prepare import prepare
from paceline.compute.data.spec import DataSpec
print("go", flush=True)
prepare(DataSpec.of(sys.argv[1], 0.1, tokenizer="bpe:600"), sys.argv[2])
print("done", flush=True)
"""


def test_a_preparation_killed_at_any_moment_leaves_nothing_half_valid(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(text_of(n, 2000) for n in range(40)), encoding="utf-8")
    spec = DataSpec.of(str(text), 0.1, tokenizer="bpe:600")
    started = time.monotonic()
    clean = content(prepare(spec, tmp_path / "clean").folder)
    takes_s = time.monotonic() - started
    cache, killed = tmp_path / "cache", 0
    moments = random.Random(0)
    for attempt in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(text), str(cache)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        time.sleep(moments.uniform(0, takes_s) if attempt else 0.0)
        process.send_signal(signal.SIGKILL)
        killed += "done" not in process.stdout.read()
        process.wait(timeout=30)
        process.stdout.close()
        for folder in cache.glob("[0-9a-f]*"):
            Prepared.open(folder, deep=True)
    assert killed >= 1, "no preparation was really interrupted"
    assert content(prepare(spec, cache).folder) == clean
    assert not list(cache.glob(".part-*")), "leftovers of dead processes are taken away"


def test_a_leftover_of_a_living_process_stays(corpus: Path, tmp_path: Path) -> None:
    spec = DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bytes")
    mine = preparing.shards.part_folder(tmp_path)
    prepare(spec, tmp_path)
    assert mine.is_dir()


def test_two_at_once_agree(corpus: Path, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", KILLED, str(corpus / "*.txt"), str(tmp_path / "cache")]
    both = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        assert process.communicate(timeout=120)[0] == "go\ndone\n"
        assert process.returncode == 0
    (folder,) = (tmp_path / "cache").glob("[0-9a-f]*")
    Prepared.open(folder, deep=True)
    assert not list((tmp_path / "cache").glob(".part-*"))


def test_an_exception_leaves_nothing(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ByteTokenizer, "encode_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bytes"), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_source_that_changes_while_it_is_read_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = preparing.hold_out

    def meddling(records: np.ndarray, fraction: float) -> np.ndarray:
        (corpus / "05.txt").write_text("something else")
        return real(records, fraction)

    monkeypatch.setattr(preparing, "hold_out", meddling)
    with pytest.raises(Refused) as caught:
        prepare(DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bytes"), tmp_path / "cache")
    assert caught.value.where == str(corpus / "05.txt")


def test_a_separate_source_for_evaluation(corpus: Path, prepared_of: Make) -> None:
    for number in range(20, 30):  # copies under other names
        (corpus / f"{number}.copy").write_bytes((corpus / f"{number}.txt").read_bytes())
    prepared = prepared_of(str(corpus / "[0-2]?.txt"), [str(corpus / "2?.copy"), str(corpus / "3?.txt")])
    assert prepared.documents == 30
    assert prepared.eval_documents == 20
    assert prepared.index["eval_documents_also_in_train"] == 10
    stream = prepared.streams("eval")[0]
    assert prepared.document_id(stream, 0) == f"{corpus / '20.copy'}@0"


def test_a_single_file_and_a_constant_one_can_be_held_out_from(tmp_path: Path, prepared_of: Make) -> None:
    for name, text in (("a", text_of(3, 400)), ("b", "a" * 5000)):
        path = tmp_path / f"{name}.txt"
        path.write_text(text)
        prepared = prepared_of(str(path), 0.01)
        assert prepared.eval_documents >= 1
        assert prepared.bytes > 0.7 * len(text.encode())
        assert prepared.bytes + prepared.eval_bytes == len(text.encode())


def test_neighbouring_blocks_on_one_side_are_one_document(tmp_path: Path, prepared_of: Make) -> None:
    """Ends of documents stand only where the text ends or a held-out block was taken out."""
    text = text_of(4, 900)
    (tmp_path / "a.txt").write_text(text)
    prepared = prepared_of(str(tmp_path / "a.txt"), 0.2)
    pieces = [(s, t) for s in ("train", "eval") for t in texts_of(prepared, s)]
    assert len(pieces) < 16, "sixteen blocks, some of them neighbours"
    rest = text
    for split in [s for s, _ in sorted(pieces, key=lambda piece: text.index(piece[1]))]:
        piece = next(t for s, t in pieces if s == split and rest.startswith(t))
        rest = rest.removeprefix(piece)
    assert rest == ""
    (tmp_path / "b.txt").write_text(text_of(5, 90))
    whole = prepared_of(str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    assert texts_of(whole, "train") == [text]
    assert whole.tokens == len(text.encode()) + 1
    ids = np.arange(4000) % 101
    np.save(tmp_path / "ids.npy", ids)
    np.save(tmp_path / "held.npy", ids[:50])
    assert prepared_of(str(tmp_path / "ids.npy"), str(tmp_path / "held.npy"), tokenizer=None).documents == 1


def test_named_sources_have_streams_of_their_own(corpus: Path, prepared_of: Make) -> None:
    prepared = prepared_of(
        {"a": {"path": str(corpus / "[01]?.txt"), "weight": 1}, "b": {"path": str(corpus / "[23]?.txt")}}
    )
    assert [(s.name, s.weight) for s in prepared.streams("train")] == [("a", 1.0), ("b", None)]
    assert all(s.documents for split in ("train", "eval") for s in prepared.streams(split))


def test_shards_join(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bytes")
    whole = prepare(spec, tmp_path / "one").streams("train")[0]
    monkeypatch.setattr(preparing.shards, "SHARD_TOKENS", 1000)
    cut = prepare(spec, tmp_path / "two").streams("train")[0]
    assert len(cut.shard_tokens) == -(-whole.tokens // 1000) > 3
    np.testing.assert_array_equal(cut.slice(0, cut.tokens), whole.slice(0, whole.tokens))
    np.testing.assert_array_equal(cut.slice(990, 3010), whole.slice(990, 3010))
    assert cut.slice(cut.tokens - 2, cut.tokens + 50).size == 2
    assert cut.slice(1000, 2000).size == 1000
    np.testing.assert_array_equal(np.concatenate(list(cut.pieces(700))), whole.slice(0, whole.tokens))


def test_ids_without_a_tokenizer(tmp_path: Path, prepared_of: Make) -> None:
    np.save(tmp_path / "ids.npy", np.arange(4000) % 101)
    prepared = prepared_of(str(tmp_path / "ids.npy"), tokenizer=None, vocab_size=101)
    assert (prepared.vocab, prepared.eos, prepared.token_bytes) == (101, None, None)
    assert prepared.tokens + prepared.eval_tokens == 4000
    with pytest.raises(Refused, match="no tokenizer"):
        _ = prepared.tokenizer
    assert prepared_of(str(tmp_path / "ids.npy"), tokenizer=None).vocab == 101
    with pytest.raises(Refused) as caught:
        prepared_of(str(tmp_path / "ids.npy"), tokenizer=None, vocab_size=100)
    assert caught.value.where == f"{tmp_path / 'ids.npy'}[100]"


def test_ids_beside_text_need_their_tokenizer(corpus: Path, tmp_path: Path, prepared_of: Make) -> None:
    np.save(tmp_path / "ids.npy", np.arange(4000) % 256)
    source = [str(tmp_path / "ids.npy"), str(corpus / "*.txt")]
    with pytest.raises(Refused, match="need the tokenizer"):
        prepared_of(source, tokenizer="bpe:300")
    assert prepared_of(source).vocab == 257


def test_wide_vocabularies_are_stored_wide(tmp_path: Path, prepared_of: Make) -> None:
    ids = np.random.default_rng(0).integers(0, 70_000, 3000)
    np.save(tmp_path / "ids.npy", ids)
    prepared = prepared_of(str(tmp_path / "ids.npy"), tokenizer=None, vocab_size=70_000)
    assert prepared.index["dtype"] == "<u4"
    joined = [prepared.streams(s)[0].slice(0, 3000) for s in ("train", "eval")]
    assert sorted(np.concatenate(joined).tolist()) == sorted(ids.tolist())


def test_the_embedding_may_be_padded_and_never_too_small(corpus: Path, prepared_of: Make) -> None:
    """B080: a larger embedding stays; rows are not cut off to fit the tokenizer."""
    assert prepared_of(str(corpus / "*.txt"), vocab_size=512).vocab == 257
    with pytest.raises(Refused) as caught:
        prepared_of(str(corpus / "*.txt"), vocab_size=256)
    assert caught.value.key == "model.vocab_size"
    assert "257" in caught.value.use


def test_bad_rows_stop_or_are_counted(tmp_path: Path, prepared_of: Make) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [json.dumps({"text": text_of(n, 30)}) for n in range(30)]
    rows.insert(7, "{oops")
    rows.insert(9, json.dumps({"text": ""}))
    path.write_text("\n".join(rows))
    with pytest.raises(Refused) as caught:
        prepared_of(str(path))
    assert caught.value.where == f"{path}:8"
    index = prepared_of(str(path), bad_row="skip").index
    assert (index["skipped_rows"], index["empty_rows"]) == (1, 1)
    assert index["skipped_at"] == [f"{path}:8: a row is not JSON"]
    assert index["train_documents"] + index["eval_documents"] == 30


def test_nothing_readable_is_refused(tmp_path: Path, prepared_of: Make) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n\n")
    with pytest.raises(Refused, match="no document"):
        prepared_of(str(tmp_path / "rows.jsonl"), bad_row="skip")


def test_the_spec_of_a_job_and_its_refusals(corpus: Path) -> None:
    data = SimpleNamespace(
        train=str(corpus / "*.txt"), eval=0.01, tokenizer=None, text_field="text", bad_row="stop"
    )
    job: Any = SimpleNamespace(data=data, model=SimpleNamespace(own_vocab_size=lambda: 512))
    assert DataSpec.from_job(job) == DataSpec.of(str(corpus / "*.txt"), vocab_size=512)
    data.train = None
    with pytest.raises(Refused, match="required"):
        DataSpec.from_job(job)
    for fraction in (0.0, 1.0, -1, float("nan")):
        with pytest.raises(Refused) as caught:
            DataSpec.of("a.txt", fraction)
        assert caught.value.exit_code == Exit.USAGE


def test_a_job_file_as_it_is_loaded(corpus: Path, tmp_path: Path) -> None:
    from paceline.job import load

    (tmp_path / "job.toml").write_text(
        'data.train = "corpus/*.txt"\ndata.eval = 0.1\ndata.tokenizer = "bytes"\n'
    )
    spec = DataSpec.from_job(load(tmp_path / "job.toml", defaults_files=()).job)
    assert spec == DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bytes")
    (tmp_path / "job.toml").write_text(
        f'data.train = {{a = {{path = "corpus/0?.txt", weight = 3}}, b = {{path = "{corpus}/1?.txt"}}}}\n'
        'data.eval = "corpus/2?.txt"\n'
    )
    spec = DataSpec.from_job(load(tmp_path / "job.toml", defaults_files=()).job)
    assert [(i.name, i.weight, i.paths) for i in spec.train] == [
        ("a", 3.0, (f"{corpus}/0?.txt",)),
        ("b", 1.0, (f"{corpus}/1?.txt",)),
    ]
    assert spec.eval == (SourceItem((f"{corpus}/2?.txt",)),)


def test_a_tokenizer_that_is_not_there(corpus: Path, prepared_of: Make) -> None:
    with pytest.raises(Refused) as caught:
        prepared_of(str(corpus / "*.txt"), tokenizer="meta-llama/Llama-3.1-8B")
    assert caught.value.exit_code == Exit.USAGE
    with pytest.raises(Refused) as caught:
        prepared_of(str(corpus / "*.txt"), tokenizer="missing/tokenizer.json")
    assert caught.value.exit_code == Exit.DATA


def test_a_full_disk_and_an_unwritable_cache(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bytes")
    (tmp_path / "file").touch()
    with pytest.raises(Failed) as failed:
        prepare(spec, tmp_path / "file" / "cache")
    assert failed.value.exit_code == Exit.STORE
    monkeypatch.setattr(preparing.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(Refused) as caught:
        prepare(spec, tmp_path / "cache")
    assert caught.value.exit_code == Exit.MEMORY


def test_progress_counts_up_to_the_end(corpus: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    spec = DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bpe:300")
    prepare(spec, tmp_path, progress=rows.append)
    assert [s for i, s in enumerate(r["stage"] for r in rows) if i == 0 or rows[i - 1]["stage"] != s] == [
        "read",
        "tokenizer",
        "tokenise",
    ]
    assert rows[-1]["done_bytes"] == rows[-1]["total_bytes"] > 0
    assert rows[-1]["documents"] == 40


def test_a_large_corpus_trains_the_tokenizer_on_a_sample(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenise, "BPE_TRAIN_BYTES", 8_000)
    spec = DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bpe:300")
    prepared = prepare(spec, tmp_path)
    assert 0 < prepared.index["tokenizer"]["trained_on_bytes"] < 20_000 < prepared.bytes


def test_some_of_the_standard_library(prepared_of: Make) -> None:
    root = Path(sysconfig.get_path("stdlib"))
    prepared = prepared_of([str(root / name / "*.py") for name in ("json", "logging")], tokenizer="bpe:500")
    assert prepared.documents + prepared.eval_documents == 8
    assert prepared.index["token_bytes_exact"] is True
    assert prepared.bytes / prepared.tokens > 1.8, "merges of code are worth more than a byte"


@pytest.mark.parametrize("pass_", ["read", "tokenizer"])
@pytest.mark.parametrize("how", ["gone", "unreadable", "a folder"])
def test_a_source_that_goes_away_is_named_as_the_source(
    corpus: Path, tmp_path: Path, pass_: str, how: str
) -> None:
    doomed = corpus / "39.txt"

    def spoil(row: dict[str, Any]) -> None:
        if row["stage"] == pass_ and doomed.is_file() and not doomed.is_symlink():
            doomed.unlink()
            if how == "a folder":
                doomed.mkdir()
            elif how == "unreadable":
                doomed.symlink_to(doomed)  # a loop: OSError, even for root

    spec = DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bpe:300")
    with pytest.raises(Refused) as caught:
        prepare(spec, tmp_path / "cache", progress=spoil, workers=1)
    assert caught.value.exit_code == 20
    assert caught.value.message == "a source changed while it was being prepared"
    assert str(doomed) in caught.value.seen
    assert "free some space" not in caught.value.use


def test_a_full_disk_is_still_the_caches_trouble(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> Path:
        raise OSError(28, "No space left on device", str(tmp_path / "cache" / "x"))

    monkeypatch.setattr(preparing.shards, "part_folder", full)
    with pytest.raises(Failed) as caught:
        prepare(DataSpec.of(str(corpus / "*.txt"), 0.1, tokenizer="bytes"), tmp_path / "cache")
    assert caught.value.exit_code == 11
    assert "free some space" in caught.value.use


def test_data_eval_of_the_same_files_is_refused(corpus: Path, prepared_of: Make) -> None:
    with pytest.raises(Refused) as caught:
        prepared_of(str(corpus / "*.txt"), str(corpus / "0*.txt"))
    assert (caught.value.exit_code, caught.value.key) == (20, "data.eval")
    assert "and 9 more" in caught.value.seen

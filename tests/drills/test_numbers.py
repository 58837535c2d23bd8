"""D39, D40, D42-D44, D46, D47: numbers that are not finite and data that is not what it says."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline as pl
from paceline.compute.data.documents import MAX_ROW_BYTES
from paceline.ledger.outcome import Exit, PacelineError
from paceline.recover import checkpoint
from tests.drills.small import end_state, fired, plant, rows, train, write_tiny
from tests.flow.corpus import write_corpus

TEXT = {"data__tokenizer": '"bytes"', "model__vocab_size": "512", "train__steps": "6"}


def refused_before_ranks(job: Path, layout: str = "dp=2", **changes: Any) -> PacelineError:
    """The error of a job that no rank may see: no run is left, and so no rank's log."""
    with pytest.raises(PacelineError) as caught:
        pl.train(job, layout=layout, set=changes)
    assert not list(job.parent.glob("runs/*/logs/rank-*"))
    return caught.value


@pytest.mark.parametrize(
    ("factor", "layout"),
    [
        pytest.param("nan", "dp=2", marks=pytest.mark.drill(39)),
        pytest.param("nan", "fsdp=2", marks=pytest.mark.drill(39)),
        pytest.param("inf", "dp=2", marks=pytest.mark.drill(39)),
    ],
)
def test_a_number_that_is_not_finite_on_one_rank_stops_all_before_the_weights(
    factor: str, layout: str, tmp_path: Path, cache: str
) -> None:
    job = write_tiny(tmp_path)
    plant(job, "scale", step=9, factor=factor)
    with pytest.raises(PacelineError) as caught:
        train(job, "poisoned", layout)
    assert fired(job)
    error = caught.value
    assert error.exit_code == Exit.NONFINITE
    assert "at step 9" in error.message
    assert "on rank 1 of 2" in error.seen
    assert "the loss of its own rows is not finite" in error.seen
    assert "the batch: rows 64 to 71" in error.seen
    run = tmp_path / "runs" / "poisoned"
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    assert found.name == "step-00000005"
    assert all(bool(value.isfinite().all()) for value in end_state(run, 5).values())
    assert [row["step"] for row in rows(run) if row["kind"] == "train"][-1] in (8, 9)


@pytest.mark.drill(39)
@pytest.mark.parametrize("layout", ["dp=2", "fsdp=2", "fsdp=2:zero1", "pp=2"])
def test_a_gradient_that_is_not_finite_names_its_rank_and_its_parameter(
    layout: str, tmp_path: Path, cache: str
) -> None:
    job = write_tiny(tmp_path)
    plant(job, "gradient", step=9)
    with pytest.raises(PacelineError) as caught:
        train(job, "poisoned", layout)
    assert fired(job)
    assert caught.value.exit_code == Exit.NONFINITE
    assert "gradients are not finite on rank 1 of 2" in caught.value.seen, caught.value.seen
    assert ".weight" in caught.value.seen, "and the tensor"
    assert "the batch: rows 64 to 71" in caught.value.seen


@pytest.mark.drill(42)
@pytest.mark.parametrize(
    "row", [b"{broken", b'{"text": "\xff\xfe"}', b'{"text": "' + b"x" * MAX_ROW_BYTES + b'"}']
)
def test_a_row_that_cannot_be_read_stops_or_is_left_out_on_all_ranks_alike(
    row: bytes, tmp_path: Path, cache: str
) -> None:
    job = write_tiny(tmp_path, data__train='"rows.jsonl"', **TEXT)
    good = [
        json.dumps({"text": f"row {n} of a corpus, with some words to learn. " * 9}).encode()
        for n in range(60)
    ]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join([*good[:20], row, *good[20:]]) + b"\n")
    error = refused_before_ranks(job)
    assert error.exit_code == Exit.DATA
    assert error.where.endswith("rows.jsonl:21")
    if len(row) > MAX_ROW_BYTES:
        return  # a line without end is never skipped: nobody knows what it held
    run = pl.train(job, layout="dp=2", set={"data.bad_row": "skip"})
    assert run.state == "done"
    steps = [
        [json.loads(line)["step"] for line in path.read_text().splitlines() if '"step":' in line]
        for path in sorted((run.path / "ledger").glob("rank-*.jsonl"))
    ]
    assert len(steps) == 2
    assert steps[0] == steps[1]


@pytest.mark.drill(43)
@pytest.mark.parametrize(
    ("tokens", "layout", "told"),
    [(0, "dp=2", "0"), (8, "dp=2", "17"), (40, "dp=4", "dp=")],
    ids=["empty", "less than a sequence", "fewer sequences than ranks"],
)
def test_too_little_data_is_refused_with_what_is_needed(
    tokens: int, layout: str, told: str, tmp_path: Path, cache: str
) -> None:
    job = write_tiny(tmp_path, data__eval='"held.npy"')
    np.save(tmp_path / "ids.npy", np.arange(tokens, dtype=np.uint16))
    np.save(tmp_path / "held.npy", np.arange(100, dtype=np.uint16))
    error = refused_before_ranks(job, layout)
    assert error.exit_code == Exit.DATA
    assert told in f"{error.seen} {error.rule} {error.allowed} {error.use}"
    assert error.use


@pytest.mark.drill(44)
def test_a_token_outside_the_vocabulary_is_refused_before_a_device_sees_it(
    tmp_path: Path, cache: str
) -> None:
    job = write_tiny(tmp_path)
    ids = np.load(tmp_path / "ids.npy")
    ids[777] = 101
    np.save(tmp_path / "ids.npy", ids)
    error = refused_before_ranks(job)
    assert error.exit_code == Exit.DATA
    assert error.where.endswith("ids.npy[777]")
    assert "101" in error.seen


@pytest.mark.drill(46)
def test_ten_gigabytes_of_one_line_are_named_and_not_read(tmp_path: Path, cache: str) -> None:
    """A sparse file: 10 GB to whoever reads it, nothing on the disk."""
    job = write_tiny(tmp_path, data__train='"line.jsonl"', **TEXT)
    with open(tmp_path / "line.jsonl", "wb") as file:
        file.write(b'{"text": "')
        file.truncate(10_000_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = refused_before_ranks(job)
    assert error.exit_code == Exit.DATA
    assert error.where.endswith("line.jsonl:1")
    assert "too long" in error.message
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        assert resource.getrusage(who).ru_maxrss - before < 1 << 20, "a gigabyte"


@pytest.mark.drill(46)
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.zip", "a.tar", "a.npz", "a.txt.xz", "a.tar.gz", "A.ZIP"])
def test_what_would_have_to_be_unpacked_is_refused_by_name(name: str, tmp_path: Path, cache: str) -> None:
    """Nothing is expanded, so no bomb goes off, nested or not."""
    job = write_tiny(tmp_path, data__train=f'"{name}"', **TEXT)
    (tmp_path / name).write_bytes(b"PK\x03\x04" + bytes(100))
    error = refused_before_ranks(job)
    assert error.exit_code == Exit.DATA
    assert name in error.seen + error.where + error.message
    assert "unpack" in error.use + error.rule


NAMES = [
    "früh ling.txt",
    "sp ace 'quote' \"double\".txt",
    "new\nline.txt",
    "x" * 251 + ".txt",
    "CON.txt",
    "dot..txt",
]


@pytest.mark.drill(47)
@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_data_file_works(name: str, tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path / "ein Ordner 'mit' Ümläuten", data__train='"*.txt"', **TEXT)
    source = write_corpus(tmp_path / "made", documents=2)
    for number, path in enumerate(sorted(source.iterdir())):
        path.rename(job.parent / (name if number else "a.txt"))
    run = pl.train(job, layout="dp=2")
    assert run.state == "done"
    assert (job.parent / "runs" / "tiny").is_dir()


@pytest.mark.drill(47)
def test_names_that_differ_by_case_only_never_share_a_folder(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path, train__steps="1")
    names = [pl.train(job, layout="dp=2", name=name).path.name for name in ("Lm", "lm")]
    assert len({name.lower() for name in names}) == 2
    for name in ("CON", "x.", "a b", "é", "a\nb", "x" * 255):
        with pytest.raises(PacelineError) as caught:
            pl.train(job, layout="dp=2", name=name)
        assert caught.value.exit_code == Exit.USAGE
        assert caught.value.rule


@pytest.mark.drill(48)
def test_a_loop_of_links_ends(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path, data__train='"data/**/*.txt"', **TEXT)
    write_corpus(tmp_path / "data", documents=2)
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "self.txt").symlink_to("self.txt")
    error = refused_before_ranks(job)
    assert "self.txt" in error.seen + error.where
    (tmp_path / "data" / "self.txt").unlink()
    run = pl.train(job, layout="dp=2")
    assert run.state == "done"

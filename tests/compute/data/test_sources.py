"""Every source resolves in a fixed order, or is refused with file, place and repair."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.compute.data.sources import (
    STDLIB,
    SourceItem,
    as_items,
    refuse_same_files,
    resolve,
    stdlib_files,
)
from paceline.ledger.outcome import Exit, Refused


def refused(source: object, *, skip_empty: bool = False) -> Refused:
    with pytest.raises(Refused) as caught:
        resolve(as_items(source), skip_empty=skip_empty)
    error = caught.value
    assert error.seen
    assert error.rule
    assert error.use, "a refusal says what to do instead"
    return error


def test_a_glob_is_sorted_and_each_file_comes_once(corpus: Path) -> None:
    files = resolve(as_items([str(corpus / "*.txt"), str(corpus / "03.txt")]))
    assert [Path(f.path).name for f in files] == [f"{n:02d}.txt" for n in range(40)]
    assert all(f.kind == "text" and f.blocks == 0 for f in files)


def test_spellings_of_a_source(corpus: Path) -> None:
    assert as_items("a.txt") == as_items(["a.txt"]) == as_items(Path("a.txt")) == (SourceItem(("a.txt",)),)
    named = as_items({"x": {"path": "a.txt", "weight": 3}, "y": {"path": ["b.txt", "c.txt"]}})
    assert named == (SourceItem(("a.txt",), "x", 3.0), SourceItem(("b.txt", "c.txt"), "y", None))
    entries = [SimpleNamespace(name="x", path="a.txt", weight=2.0), SimpleNamespace(name="", path="b.txt")]
    assert as_items(entries) == (SourceItem(("b.txt",)), SourceItem(("a.txt",), "x", 2.0))


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan")])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(Refused) as caught:
        as_items({"x": {"path": "a.txt", "weight": weight}})
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.key == "data.train.x.weight"


@pytest.mark.parametrize("source", ["http://x.org/a.txt", "hf://datasets/a/b", "s3://b/k", "mine.py:build"])
def test_what_has_not_arrived_is_refused_by_name(source: str) -> None:
    error = refused(source)
    assert error.exit_code == Exit.USAGE
    assert "not in this version" in error.message
    assert "06" in error.rule


def test_a_missing_file_names_the_nearest(corpus: Path) -> None:
    (corpus / "shakespeare.txt").write_text("x")
    error = refused(str(corpus / "shakespear.txt"))
    assert error.exit_code == Exit.DATA
    assert error.use == str(corpus / "shakespeare.txt")


def test_a_folder_an_empty_glob_an_empty_file_and_a_pipe(corpus: Path) -> None:
    assert "**" in refused(str(corpus)).use
    assert "no file matches" in refused(str(corpus / "*.md")).message
    (corpus / "hollow.txt").touch()
    assert str(corpus / "hollow.txt") == refused(str(corpus / "*.txt")).seen
    assert len(resolve(as_items(str(corpus / "*.txt")), skip_empty=True)) == 40
    assert "nothing but empty" in refused(str(corpus / "hollow.txt"), skip_empty=True).rule
    os.mkfifo(corpus / "pipe.txt")
    assert refused(str(corpus / "pipe.txt")).exit_code == Exit.DATA


def test_columnar_and_compressed_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    assert ".parquet" in refused(str(tmp_path / "a.parquet")).message


def test_a_single_file_is_cut_and_one_of_many_is_not(tmp_path: Path) -> None:
    big = tmp_path / "big.txt"
    big.write_text("x" * (2 << 20))
    assert resolve(as_items(str(big)))[0].blocks == 64 * 1024
    small = tmp_path / "small.txt"
    small.write_text("x" * 1600)
    assert resolve(as_items(str(small)))[0].blocks == 100
    assert {f.blocks for f in resolve(as_items([str(big), str(small)]))} == {0}
    np.save(tmp_path / "ids.npy", np.arange(10))
    assert resolve(as_items(str(tmp_path / "ids.npy")))[0].kind == "npy"


def test_the_standard_library_is_its_own_source_without_tests_and_packages() -> None:
    files = stdlib_files()
    names = {Path(f).name for f in files}
    assert {"argparse.py", "dataclasses.py"} <= names
    assert all(f.endswith(".py") for f in files)
    parts = {part for f in files for part in Path(f).parts}
    assert not parts & {"site-packages", "test", "tests", "idle_test", "__pycache__"}
    resolved = resolve(as_items(STDLIB))
    assert [f.path for f in resolved] == [f for f in files if os.path.getsize(f)]


def test_each_file_once_whatever_links_lead_to_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "again.txt").symlink_to("a.txt")
    (tmp_path / "loop").symlink_to(tmp_path)
    for source in (f"{tmp_path}/**/*.txt", f"{tmp_path}/*.txt"):
        assert [file.path for file in resolve(as_items(source))] == [f"{tmp_path}/a.txt"]
    both = as_items({"one": {"path": f"{tmp_path}/a.txt"}, "two": {"path": f"{tmp_path}/again.txt"}})
    assert len(resolve(both)) == 2, "two sources with weights of their own may share a file"


def test_files_that_are_trained_on_are_not_held_out(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text")
    (tmp_path / "link.txt").symlink_to("a.txt")
    train = resolve(as_items(f"{tmp_path}/a.txt"))
    refuse_same_files(train, resolve(as_items(f"{tmp_path}/b.txt"), key="data.eval"))
    with pytest.raises(Refused) as caught:
        refuse_same_files(train, resolve(as_items(f"{tmp_path}/link.txt"), key="data.eval"))
    assert (caught.value.exit_code, caught.value.key) == (20, "data.eval")

"""``plan --score`` as a user types it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.cli.shell import paceline

HEAD = "id,gpu_type,n_gpus,layers,hidden,heads,ffn,vocab,seq_len,global_batch,micro_batch,step_time_s,framework\n"
ROW = "a,H100-SXM-80GB,8,32,4096,32,14336,128256,8192,64,1,9.5,own\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "history.csv"
    path.write_text(HEAD + ROW + ROW.replace("a,", "b,", 1).replace(",8192,64,1,9.5", ",8192,64,1,"))
    return path


def test_own_history_is_scored_and_written(table: Path) -> None:
    done = paceline("plan", "--score", "history.csv", "--out", "predicted.csv", cwd=table.parent)
    assert done.code == 0, done.err
    assert "2 of 2 runs predicted" in done.out
    assert "saved    predicted.csv: 2 predictions" in done.err
    with (table.parent / "predicted.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert rows[0]["step_time_s"] == rows[1]["step_time_s"]


def test_json_has_every_table(table: Path) -> None:
    result = paceline("plan", "--score", "history.csv", "--json", cwd=table.parent).object["result"]
    assert result["judged"] == 1
    assert {"sources", "groups", "ranking", "worst", "all", "calibration"} <= set(result)


def test_calibrating_on_own_runs(table: Path) -> None:
    done = paceline(
        "plan", "--score", "history.csv", "--calibrate", "history.csv", "--json", cwd=table.parent
    )
    assert json.loads(done.out)["result"]["calibration"] == "1 runs of the given table"


def test_a_missing_table_is_told_in_words(table: Path) -> None:
    done = paceline("plan", "--score", "none.csv", cwd=table.parent)
    assert "there is no such file" in done.err
    assert "Errno" not in done.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plan"], "JOB is missing"),
        (["plan", "--score", "none.csv"], "none.csv cannot be read as a table"),
        (["plan", "job.toml", "--score", "history.csv"], "JOB with --score"),
        (["plan", "--score", "history.csv", "--layout", "dp=2"], "--layout with --score"),
        (["plan", "job.toml", "--out", "x.csv"], "--out without --score"),
        (["plan", "--score", "history.csv", "--out", "no/x.csv"], "cannot be written"),
        (["plan", "--score", "empty.csv"], "holds no runs"),
    ],
)
def test_what_does_not_go_together_is_refused(table: Path, argv: list[str], message: str) -> None:
    (table.parent / "empty.csv").write_text(HEAD)
    done = paceline(*argv, cwd=table.parent)
    assert done.code == 2
    assert message in done.err


@pytest.mark.parametrize(
    "argv", [["--score", "history.csv"], ["--score", "other.csv", "--calibrate", "history.csv"]]
)
def test_measured_runs_are_never_written_over(table: Path, argv: list[str]) -> None:
    """Also through another name of the same file."""
    (table.parent / "other.csv").write_text(table.read_text())
    (table.parent / "link.csv").symlink_to(table)
    before = table.read_text()
    for out in ("history.csv", "link.csv", "./history.csv"):
        done = paceline("plan", *argv, "--out", out, cwd=table.parent)
        assert done.code == 2, done.err
        assert "which is read" in done.err
    assert table.read_text() == before


def test_a_place_that_takes_no_file_is_told_before_the_work(table: Path) -> None:
    done = paceline("plan", "--score", "history.csv", "--out", "/proc/x.csv", cwd=table.parent)
    assert done.code == 55, done.err
    assert "cannot be written" in done.err
    assert "pricing" not in done.err
    measured = paceline("cluster", "measure", "--out", "/proc/x.toml", cwd=table.parent)
    assert measured.code == 55, measured.err

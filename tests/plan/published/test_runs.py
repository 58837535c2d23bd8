"""Tables of runs: read as they are, refused where they are no such table."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.ledger.outcome import Refused
from paceline.plan.published.runs import OPEN, read_runs

HEAD = "id,n_gpus,layers,hidden,seq_len,gpu_type,step_time_s\n"


def table(folder: Path, text: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_open_tables_are_whole() -> None:
    runs = read_runs(OPEN)
    assert len(runs) == 1791 + 1440
    assert sum(run.source_id == "vtrain-single" for run in runs) == 1440
    assert all(run.step_time_s or run.tokens_per_s_per_gpu or run.peak_mem_gb or run.quality for run in runs)


def test_a_blank_is_none_and_a_column_may_be_absent(tmp_path: Path) -> None:
    (run,) = read_runs([table(tmp_path, HEAD + "a,8,2,64,,H100-SXM-80GB,0.5\n")])
    assert (run.n_gpus, run.seq_len, run.step_time_s, run.tp, run.framework) == (8, None, 0.5, None, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,layers\na,2\n", "lacks columns"),
        (HEAD + "a,8,2,64,128,H100,fast\n", "step_time_s is not a number"),
        (HEAD + "a,8,2.5,64,128,H100,1\n", "layers is not a whole number"),
        (HEAD + "a,-8,2,64,128,H100,1\n", "n_gpus is not possible"),
        (HEAD + "a,8,2,64,128,H100,nan\n", "step_time_s is not possible"),
        (HEAD + "a,8,2,64,128,H100,1\na,8,2,64,128,H100,1\n", "a is there twice"),
        (HEAD + ",8,2,64,128,H100,1\n", "a run without an id"),
        ("", "lacks columns"),
        (HEAD.replace(",", ";") + "a;8;2;64;128;H100;1\n", "separated by semicolons"),
        (HEAD.replace("hidden", "layers"), "has a column twice"),
        (HEAD + "a,1e18,2,64,128,H100,1\n", "n_gpus is out of range"),
        (HEAD + "a,8,1e7,64,128,H100,1\n", "layers is out of range"),
    ],
)
def test_what_is_no_table_of_runs_is_refused_by_name_and_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(Refused) as caught:
        read_runs([table(tmp_path, text)])
    assert message in caught.value.message
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        read_runs([tmp_path / "none.csv"])

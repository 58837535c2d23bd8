"""One small run through the real command line, and every command that looks at it afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.ledger.folder import RunFolder
from tests.api.measured import plant
from tests.cli.shell import Done, paceline
from tests.flow.corpus import write_job

LIMIT_S = 240.0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A folder with ``runs/job`` of 12 steps on one device, and what ``train --json`` printed."""
    here = tmp_path_factory.mktemp("whole")
    write_job(here)
    plant(here / "cache")
    return here, there(here, "train", "job.toml", "--layout", "single,mbs=3", "--json")


def there(here: Path, *args: str) -> Done:
    return paceline(*args, cwd=here, limit_s=LIMIT_S, PACELINE_CACHE=str(here / "cache"))


def test_train_prints_one_object_a_line(trained: tuple[Path, Done]) -> None:
    here, done = trained
    assert done.code == 0, done.out + done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert all(row["schema"] == 1 and row["command"] == "train" for row in rows)
    assert [row["step"] for row in rows if row.get("kind") == "train"] == list(range(1, 13))
    assert {"run", "plan", "data", "model"} <= {row["field"] for row in rows if row.get("kind") == "say"}
    last = rows[-1]
    assert (last["ok"], last["exit_code"], last["result"]["state"], last["result"]["step"]) == (
        True,
        0,
        "done",
        12,
    )
    assert (here / last["result"]["report"]).is_file()


def test_runs_and_logs(trained: tuple[Path, Done]) -> None:
    here, _ = trained
    (row,) = there(here, "runs", "--json").object["result"]
    assert (row["name"], row["state"], row["step"], row["kind"]) == ("job", "done", 12, "train")
    assert " job " in there(here, "runs").out
    log = there(here, "logs").out.splitlines()
    assert any(" train step=1" in line for line in log)
    followed = there(here, "logs", "-f", "--json")
    assert [json.loads(line).get("line") for line in followed.out.splitlines()][:-1] == log
    assert there(here, "logs", "--rank", "7").code == 2


def test_checkpoints(trained: tuple[Path, Done]) -> None:
    here, _ = trained
    rows = there(here, "checkpoint", "list", "--json").object["result"]
    assert [row["step"] for row in rows if row["latest"]] == [12]
    inspected = there(here, "checkpoint", "inspect", "job@12", "--json").object["result"]
    assert "model/embed_tokens.weight" in inspected["tensors"]
    assert there(here, "checkpoint", "verify").code == 0
    assert there(here, "checkpoint", "inspect", "job@5").code == 52


def test_sample_repeats_itself_and_obeys_its_seed(trained: tuple[Path, Done]) -> None:
    here, _ = trained
    argv = ("sample", "last", "--prompt", "the ", "--tokens", "12", "--json")
    first, again, other = (there(here, *argv, "--seed", seed).object["result"] for seed in ("1", "1", "2"))
    assert first == again
    assert first["text"].startswith("the ")
    assert first["text"] != other["text"]
    assert first["checkpoint"] == "job@12"


def test_report_and_compare(trained: tuple[Path, Done]) -> None:
    here, _ = trained
    assert (here / there(here, "report").out.strip()).read_text().startswith("<!doctype html")
    assert there(here, "compare", "job").code == 2


def test_a_damaged_checkpoint_is_named(trained: tuple[Path, Done]) -> None:
    here, _ = trained
    folder = RunFolder(here / "runs" / "job")
    shard = folder.checkpoints / "step-00000008" / "rank-00000.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    done = there(here, "checkpoint", "verify", "job@8")
    assert done.code == 53
    assert "rank-00000.safetensors" in done.err


def test_delete_says_first_and_needs_yes(trained: tuple[Path, Done]) -> None:
    here, _ = trained
    assert there(here, "runs", "delete", "job").out.startswith("would delete  job")
    assert (here / "runs" / "job").is_dir()


def test_without_json_the_closing_lines_are_the_result(trained: tuple[Path, Done]) -> None:
    here, _ = trained
    done = there(here, "train", "job.toml", "--resume", "--set", "train.steps=14")
    assert done.code == 0, done.err
    words = [line.split()[0] for line in done.out.splitlines()]
    assert words[0] == "done"
    assert "report" in words
    assert f" run   resumed: {here / 'runs' / 'job'} from step 12" in done.err
    assert "train step=13/14" in done.err

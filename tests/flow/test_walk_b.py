"""Walk b of the interface as far as it goes: a student, a laptop, one text file; every word typed at a real shell.

`job new`, one key edited, `train`, Ctrl-C, `--resume`, `sample`, a layout that has not arrived, two processes, the
folder moved to another place and taken up there, and the metrics read as plain JSON lines.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.shell import Done, environment, paceline
from tests.flow.corpus import write_corpus

LIMIT_S = 120.0
SMALL = (
    "data.eval=0.2", "data.tokenizer=bytes", "data.sequence_length=32", "model.hidden_size=32",
    "model.intermediate_size=64", "model.num_hidden_layers=2", "model.num_attention_heads=4",
    "model.num_key_value_heads=2", "model.head_dim=8", "train.global_batch_size=4", "train.precision=fp32",
    "restart.hang_timeout=60s",
)  # fmt: skip
SETS = [word for value in SMALL for word in ("--set", value)]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Path:
    """A folder with ``input.txt`` and the job that `paceline job new` printed, one key edited."""
    here = tmp_path_factory.mktemp("desk")
    texts = sorted(write_corpus(here / "texts").glob("*.txt"))
    (here / "input.txt").write_text("\n".join(p.read_text() for p in texts), encoding="utf-8")
    new = paceline("job", "new", cwd=here)
    assert new.code == 0, new.err
    lines = ['train = "input.txt"' if x.startswith("train = ") else x for x in new.out.splitlines()]
    lines = [x for x in lines if not x.startswith("steps = ")]
    (here / "job.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return here


def typed(here: Path, cache: str, *words: str) -> Done:
    return paceline(*words, cwd=here, limit_s=LIMIT_S, PACELINE_CACHE=cache)


def rows_of(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_walk(desk: Path, cache: str, tmp_path: Path) -> None:
    assert typed(desk, cache, "job", "check", "job.toml").code == 0
    interrupted(desk, cache)
    resumed(desk, cache)
    sampled_and_distributed(desk, cache)
    moved(desk, cache, tmp_path)


def interrupted(desk: Path, cache: str) -> None:
    """Ctrl-C after the first rows: the step is finished, the state saved, the code 50."""
    command = [sys.executable, "-m", "paceline", "train", "job.toml", "--layout", "single", *SETS]
    command += ["--set", "train.steps=4000", "--set", "checkpoint.every=never"]
    child = subprocess.Popen(
        command, cwd=desk, env=environment(PACELINE_CACHE=cache),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    metrics = desk / "runs/job/metrics.jsonl"
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until and not (metrics.is_file() and metrics.stat().st_size > 0):
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 50, out + err
    stopped = [line for line in out.splitlines() if line.startswith("stopped")]
    assert len(stopped) == 1, out
    assert "--resume" in stopped[0]
    assert "exit 50" in stopped[0]
    assert (desk / "runs/job/checkpoints/latest").is_file()
    status = json.loads((desk / "runs/job/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("preempted", 50)


def resumed(desk: Path, cache: str) -> None:
    """--resume goes on in the same folder up to a new end, and says which run it is."""
    saved = json.loads((desk / "runs/job/status.json").read_text())["step"]
    goal = saved + 6
    done = typed(desk, cache, "train", "job.toml", "--resume", *SETS, "--set", f"train.steps={goal}")
    assert done.code == 0, done.out + done.err
    assert "resumed" in done.err.splitlines()[0] + done.err
    steps = [row["step"] for row in rows_of(desk / "runs/job") if row["kind"] == "train"]
    assert steps == list(range(1, goal + 1)), "no step twice, none left out"
    assert "bits/byte" in done.out


def sampled_and_distributed(desk: Path, cache: str) -> None:
    sample = typed(desk, cache, "sample", "last", "--prompt", "the rider", "--tokens", "20")
    assert sample.code == 0, sample.err
    assert sample.out.startswith("the rider")
    short = ("--name", "two-axes", *SETS, "--set", "train.steps=2")
    two = typed(desk, cache, "train", "job.toml", "--layout", "fsdp=2,tp=2", *short)
    assert two.code == 0, two.out + two.err
    assert rows_of(desk / "runs/two-axes")[-1]["step"] == 2
    proven = typed(desk, cache, "prove", "job.toml", "--layout", "fsdp=2", "--leg", "fp64", *SETS)
    assert proven.code == 0, proven.out + proven.err
    assert "PROVEN   fsdp=2 trains the same model" in proven.out
    plan = typed(desk, cache, "plan", "job.toml", "--json", *SETS)
    assert plan.code == 0, plan.err
    assert plan.object["result"]["best"]["layout"]


def moved(desk: Path, cache: str, elsewhere: Path) -> None:
    """The run's folder copied away is taken up there by its path, on two processes, and its numbers are plain JSON."""
    before = json.loads((desk / "runs/job/status.json").read_text())["step"]
    shutil.copytree(desk / "runs/job", elsewhere / "runs/job")
    goal = before + 4
    done = typed(
        elsewhere,
        cache,
        "train",
        "runs/job",
        "--resume",
        "--layout",
        "fsdp=2",
        "--set",
        f"train.steps={goal}",
    )
    assert done.code == 0, done.out + done.err
    rows = rows_of(elsewhere / "runs/job")
    assert max(int(str(row["step"])) for row in rows) == goal
    assert os.path.getmtime(desk / "runs/job/metrics.jsonl") < os.path.getmtime(
        elsewhere / "runs/job/metrics.jsonl"
    )
    assert (elsewhere / "runs/job/ledger/rank-00001.jsonl").is_file()

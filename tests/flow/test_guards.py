"""A run that is refused is left as it was: nothing is written before the lock is held and the job accepted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.ledger.lock import Lock
from paceline.ledger.outcome import Exit, PacelineError
from tests.cli.shell import environment
from tests.flow.corpus import write_job


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> pl.Run:
    """A run of twelve steps that has ended."""
    folder = tmp_path_factory.mktemp("guards")
    return pl.train(write_job(folder), layout="single", name="done")


def contents(run: pl.Run) -> dict[str, bytes]:
    """Every file of the run but its lock."""
    files = (p for p in run.path.rglob("*") if p.is_file() and p.name != "lock")
    return {str(p.relative_to(run.path)): p.read_bytes() for p in files}


def refused(run: pl.Run, **changes: Any) -> PacelineError:
    job = run.path.parent.parent / "job.toml"
    with pytest.raises(PacelineError) as caught:
        pl.train(job, name="done", resume=True, **changes)
    return caught.value


@pytest.mark.drill(34)
def test_a_second_writer_is_refused_and_writes_nothing(done: pl.Run) -> None:
    before = contents(done)
    with Lock(done.folder):
        error = refused(done, layout="fsdp=2", set={"train.steps": 77})
    assert error.exit_code == Exit.LOCKED
    assert contents(done) == before


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"set": {"train.steps": 5}}, Exit.MISMATCH),
        ({"set": {"optimizer.lr": 1e-5}}, Exit.MISMATCH),
        ({"set": {"model.hidden_size": 64}}, Exit.MISMATCH),
        ({"layout": "cp=2:ring"}, Exit.USAGE),
        ({"allow_change": ["nonsense"]}, Exit.USAGE),
    ],
)
def test_a_refused_resume_leaves_the_run_as_it_was(done: pl.Run, changes: dict[str, Any], code: int) -> None:
    before = contents(done)
    error = refused(done, **changes)
    assert error.exit_code == code
    assert error.use
    assert contents(done) == before
    assert done.state == "done"


@pytest.mark.drill(48)
def test_other_data_under_the_same_name_is_refused(done: pl.Run) -> None:
    text = done.path.parent.parent / "corpus/00.txt"
    kept = text.read_bytes()
    before = contents(done)
    try:
        text.write_bytes(kept + b"one more line.\n")
        error = refused(done, set={"train.steps": 14})
    finally:
        text.write_bytes(kept)
    assert error.exit_code == Exit.MISMATCH
    assert "data" in error.message
    assert contents(done) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_machine_is_measured_ends_the_command(
    tmp_path: Path, number: int, code: int
) -> None:
    """Nothing has begun that could be saved: not 50, and above all not a training that goes on."""
    job = write_job(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-m", "paceline", "train", str(job)], cwd=tmp_path, encoding="utf-8",
        env=environment(PACELINE_CACHE=str(tmp_path / "empty")), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    until = time.monotonic() + 60
    while time.monotonic() < until and not list((tmp_path / "empty").glob("measured/*/logs/rank-*.log")):
        time.sleep(0.05)
    os.kill(child.pid, number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == code, out + err
    assert not (tmp_path / "runs").exists()
    assert not list((tmp_path / "empty").glob("measured/*.json"))


def test_a_cache_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "paceline", "train", str(write_job(tmp_path))], cwd=tmp_path, encoding="utf-8",
        env=environment(PACELINE_CACHE="/proc/nope"), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert child.returncode == Exit.STORE, child.stderr
    assert "PACELINE_CACHE" in child.stderr


@pytest.mark.drill(20, 24)
def test_a_run_goes_on_from_an_earlier_checkpoint_when_the_latest_is_damaged(tmp_path: Path) -> None:
    """By itself where a file is cut short; a step that is asked for by name is refused, with what to type instead."""
    job = write_job(tmp_path)
    run = pl.train(job, layout="single", name="hurt")
    straight = {n: v.copy() for n, v in run.metrics().items()}
    shard = next((run.path / "checkpoints/step-00000012").glob("rank-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(PacelineError) as caught:
        pl.train(f"{run.path}@12", resume=True)
    assert caught.value.exit_code == Exit.DAMAGED
    word = next(w for w in caught.value.use.split() if "@" in w)
    assert word.endswith("hurt@8")
    with pytest.raises(PacelineError, match="is a checkpoint, not a job"):
        pl.train(word)
    told: list[str] = []
    again = pl.train(
        job,
        name="hurt",
        resume=True,
        on_message=lambda m: told.append(str(m.get("text"))) if m["kind"] == "say" else None,
    )
    assert any("checkpoint damaged" in line and "goes on from step-00000008" in line for line in told), told
    assert again.path == run.path
    assert again.state == "done"
    assert again.metrics()["loss"].tolist() == straight["loss"].tolist()
    assert [c.step for c in again.checkpoints()][-1] == 12
    with pytest.raises(PacelineError) as caught:
        pl.train(f"{run.path}@5", resume=True)
    assert caught.value.exit_code == Exit.NOTHING_TO_RESUME

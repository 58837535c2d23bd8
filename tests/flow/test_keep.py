"""What is done to a checkpoint after the run that saved it: on the command line, what it leaves and how it ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import paceline as pl
from paceline.ledger.lock import Lock
from paceline.ledger.outcome import Exit
from paceline.recover.checkpoint import latest, open_manifest, verify
from paceline.recover.manifest import step_of
from paceline.recover.whole import read_whole
from tests.cli.shell import Done, in_process
from tests.flow.corpus import JOB, write_job


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was stopped in the middle of 12 steps, and the straight one."""
    folder = tmp_path_factory.mktemp("keep")
    write_job(folder, JOB.replace('"fp32"', '"fp64"'))
    pl.train(
        folder / "job.toml", layout="single", name="half",
        on_row=lambda row: False if row["kind"] == "train" and row["step"] >= 4 else None,
    )  # fmt: skip
    pl.train(folder / "job.toml", layout="single", name="straight")
    return folder


@pytest.fixture
def half(made: Path, tmp_path: Path) -> pl.Run:
    """A copy of the run, to be changed."""
    shutil.copytree(made / "runs" / "half", tmp_path / "half")
    run = pl.Run(tmp_path / "half")
    for older in run.checkpoints()[:-1]:
        shutil.rmtree(older.path)
    return run


def saved(run: pl.Run) -> Path:
    """The folder of its only checkpoint."""
    (found,) = run.checkpoints()
    return found.path


def told(capsys: pytest.CaptureFixture[str], *args: object) -> Done:
    return in_process(capsys, "checkpoint", *map(str, args))


def test_reshard_in_place_and_the_run_goes_on(
    made: Path, half: pl.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    done = told(capsys, "reshard", half.path, "--layout", "fsdp=2,tp=2", "--json")
    assert done.code == 0, done.err
    result = done.object["result"]
    path = saved(half)
    assert (result["path"], result["step"], result["ranks"]) == (str(path), step_of(path.name), 4)
    assert result["latest"]
    assert result["was"].startswith("single")
    assert latest(path.parent) == path
    assert verify(path) == []
    assert len(list(path.glob("rank-*.safetensors"))) == 4
    moved = pl.train(half.path, layout="fsdp=2", resume=True)
    straight = pl.Run(made / "runs" / "straight")
    assert np.array_equal(moved.metrics()["samples"], straight.metrics()["samples"])
    ours, theirs = (read_whole(r.path / "checkpoints" / "step-00000012") for r in (moved, straight))
    for name, tensor in theirs.items():
        assert float((ours[name] - tensor).abs().max()) <= 1e-9, name


def test_reshard_elsewhere_leaves_it_as_it_is(
    half: pl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(half)
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    done = told(capsys, "reshard", half.path, "--layout", "pp=2", "--out", tmp_path / "a" / "b")
    assert done.code == 0, done.err
    assert "→ pp=2, 2 shards" in done.out
    assert {p.name: p.read_bytes() for p in path.iterdir()} == before
    ours, theirs = read_whole(tmp_path / "a" / "b" / path.name), read_whole(path)
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    assert open_manifest(tmp_path / "a" / "b" / path.name).layout == "pp=2"
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == ["latest", path.name]


def test_what_reshard_refuses(half: pl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(half)
    for words, code, seen in (
        (["--layout", "tp=3"], Exit.RULE, "4 attention heads"),
        (["--layout", "auto"], Exit.USAGE, "every degree is a number"),
        (["--layout", "fsdp"], Exit.USAGE, "fsdp"),
        ([], Exit.USAGE, "--layout"),
        (["--layout", "dp=2", "--out", half.path], Exit.USAGE, "is a run"),
    ):
        done = told(capsys, "reshard", half.path, *words)
        assert (done.code, seen in done.err) == (code, True), done.err
    assert told(capsys, "reshard", f"{half.path}@3", "--layout", "dp=2").code == Exit.NOTHING_TO_RESUME
    with Lock(half.folder):
        assert told(capsys, "reshard", half.path, "--layout", "dp=2").code == Exit.LOCKED
    (tmp_path / "file").write_text("")
    assert (
        told(capsys, "reshard", half.path, "--layout", "dp=2", "--out", tmp_path / "file").code == Exit.STORE
    )
    shard = path / "rank-00000.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-3] ^= 1
    shard.write_bytes(raw)
    done = told(capsys, "reshard", half.path, "--layout", "dp=2")
    assert done.code == Exit.DAMAGED
    assert shard.name in done.err
    assert shard.read_bytes() == bytes(raw)
    assert sorted(p.name for p in path.parent.iterdir()) == ["latest", path.name]


def test_a_checkpoint_of_another_model_is_refused(half: pl.Run, capsys: pytest.CaptureFixture[str]) -> None:
    job = half.folder.job_toml
    job.write_text(job.read_text().replace("num_hidden_layers = 2", "num_hidden_layers = 3"))
    done = told(capsys, "reshard", half.path, "--layout", "dp=2")
    assert done.code == Exit.MISMATCH
    assert "model/layers.2.mlp.up_proj.weight" in done.err

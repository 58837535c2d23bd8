"""What is done to a checkpoint after the run that saved it: on the command line, what it leaves and how it ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import paceline as pl
from paceline.deliver.mesh import build_mesh
from paceline.ledger.lock import Lock
from paceline.ledger.outcome import Exit
from paceline.recipes.assemble import assemble
from paceline.recover.checkpoint import latest, open_manifest, verify
from paceline.recover.manifest import step_of
from paceline.recover.whole import read_whole
from tests.cli.shell import Done, in_process
from tests.flow.corpus import JOB, write_job
from tests.recipes.parity_cases import CPU


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


def first_weights(job: Path, folder: Path) -> Path:
    """The random weights that a run of this job starts from, as a safetensors file of their own."""
    loaded = pl.Job.load(job)
    built = assemble(
        loaded, loaded.model.widths(257), "fp64", build_mesh(pl.Layout.parse("single"), 0, None), CPU
    )
    weights = dict(zip(built.names, (p.detach().clone() for p in built.parameters), strict=True))
    folder.mkdir()
    save_file(weights, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def imported(capsys: pytest.CaptureFixture[str], source: Path, job: Path, *words: str) -> Done:
    return told(capsys, "import", source, "--job", job, "--json", *words)


def test_a_run_from_imported_weights_is_the_run_that_had_them(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straight = pl.Run(made / "runs" / "straight")
    source = first_weights(made / "job.toml", tmp_path / "in")
    done = imported(capsys, source, made / "job.toml", "--layout", "single")
    assert done.code == 0, done.err
    result = done.object["result"]
    assert (result["step"], result["names"], result["rounded"]) == (0, "own", [])
    run = pl.Run(made / "runs" / result["run"])
    assert (run.state, run.checkpoints()[0].step) == ("preempted", 0)
    assert run.manifest["hashes"]["weights"].startswith("imported: weights.safetensors")
    whole = pl.train(run.path, resume=True)
    assert (whole.path, whole.state) == (run.path, "done")
    assert np.array_equal(whole.metrics()["loss"], straight.metrics()["loss"])
    for prefix in ("model/", "optimizer/"):
        ours, theirs = (
            read_whole(r.path / "checkpoints" / "step-00000012", prefix) for r in (whole, straight)
        )
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.parametrize("to", ["hf", "safetensors"])
def test_out_and_in_again(
    made: Path, half: pl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    done = told(capsys, "export", half.path, tmp_path / "out", "--to", to)
    assert done.code == 0, done.err
    assert "every byte read back" in done.out
    again = imported(capsys, tmp_path / "out", made / "job.toml", "--layout", "fsdp=2,tp=2")
    assert again.code == 0, again.err
    result = again.object["result"]
    assert (result["names"], result["ranks"]) == ("llama" if to == "hf" else "own", 4)
    ours, theirs = read_whole(Path(result["path"])), read_whole(saved(half))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    assert not any(t.any() for t in read_whole(Path(result["path"]), "optimizer/").values())


def test_what_does_not_fit_the_job_is_listed_both_ways(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = first_weights(made / "job.toml", tmp_path / "in")
    weights = load_file(source)
    weights["norm.scale"] = weights.pop("norm.weight")
    weights["layers.0.mlp.up_proj.weight"] = weights["layers.0.mlp.up_proj.weight"][:-1].clone()
    weights["layers.1.mlp.up_proj.weight"] = weights["layers.1.mlp.up_proj.weight"].int()
    save_file(weights, source)
    before = sorted((made / "runs").iterdir())
    done = imported(capsys, source, made / "job.toml")
    assert done.code == Exit.MISMATCH
    seen = done.object["error"]["seen"]
    for line in (
        "missing, 1 key: norm.weight",
        "unexpected, 1 key: norm.scale",
        "layers.0.mlp.up_proj.weight [63, 32], the job's model has [64, 32]",
        "not of floats, 1 key: layers.1.mlp.up_proj.weight I32",
    ):
        assert line in seen
    assert sorted((made / "runs").iterdir()) == before


def test_a_tied_weight_may_stand_twice_and_must_be_the_same(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tied = write_job(tmp_path / "tied", JOB + "model.tie_word_embeddings = true\n")
    source = first_weights(tied, tmp_path / "in")
    weights = {name: tensor.float() for name, tensor in load_file(source).items()}
    save_file({**weights, "lm_head.weight": weights["embed_tokens.weight"].clone()}, source)
    assert imported(capsys, source, tied).code == 0
    save_file({**weights, "lm_head.weight": weights["embed_tokens.weight"] + 1}, source)
    done = imported(capsys, source, tied)
    assert done.code == Exit.MISMATCH
    assert "lm_head.weight" in done.object["error"]["seen"]


def test_a_value_that_is_not_finite_leaves_no_run(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = first_weights(made / "job.toml", tmp_path / "in")
    weights = load_file(source)
    weights["norm.weight"][3] = torch.nan
    save_file(weights, source)
    before = sorted((made / "runs").iterdir())
    done = imported(capsys, source, made / "job.toml")
    assert done.code == Exit.DAMAGED
    assert "norm.weight[3] = nan" in done.object["error"]["seen"]
    assert sorted((made / "runs").iterdir()) == before


def test_float64_that_becomes_float32_is_said(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = first_weights(made / "job.toml", tmp_path / "in")
    done = told(capsys, "import", source, "--job", made / "job.toml", "--set", "train.precision=fp32")
    assert done.code == 0, done.err
    assert "rounded to float32" in done.err
    assert "--resume" in done.out

"""A checkpoint written for another layout by one process is the one that its real ranks save, byte for byte."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.job.presets import ModelWidths
from paceline.ledger.outcome import Exit, Failed, Refused
from paceline.plan.layout import Layout
from paceline.recipes.holdings import Holdings
from paceline.recover import checkpoint, stream
from paceline.recover.manifest import NAME
from paceline.recover.owners import Holding
from paceline.recover.reshard import Resharded, reshard
from paceline.recover.save import save
from paceline.recover.slices import Box, whole
from paceline.recover.state import TrainState
from tests.pool import RankPool
from tests.recipes.checkpoint_cases import IDENTITY
from tests.recipes.test_reshard import EXPERTS, TIED, _run
from tests.tiny import tiny_job, tiny_widths

STEP = "step-00000002"
DENSE_TO = (
    "single", "dp=2", "fsdp=3", "fsdp=2:zero2", "dp=2,fsdp=2", "tp=4", "pp=2:zbv", "pp=2,fsdp=2", "tp=2,fsdp=2",
    "cp=2,fsdp=2", "pp=2:interleaved",
)  # fmt: skip
EXPERTS_TO = (
    "fsdp=2,ep=2", "fsdp=3", "fsdp=4,ep=2", "dp=2,fsdp=2,ep=2", "tp=2,ep=2,pp=2", "pp=2,fsdp=2,ep=2", "dp=4,ep=2",
)  # fmt: skip
CASES = [("tied", "fsdp=2,tp=2", to) for to in DENSE_TO] + [("experts", "single", to) for to in EXPERTS_TO]
FEATURES: dict[str, dict[str, Any]] = {"tied": TIED, "experts": EXPERTS}


@pytest.fixture(scope="module")
def saved(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two steps of each model, saved by the ranks of one layout."""
    found = {}
    for name, features in FEATURES.items():
        found[name] = tmp_path_factory.mktemp(name)
        layout = next(frm for case, frm, _ in CASES if case == name)
        arguments = {"folder": str(found[name]), "job": tiny_job(), "widths": tiny_widths(**features)}
        _run(ranks, "save_on", layout, arguments)
    return found


def written_anew(folder: Path, into: Path, widths: ModelWidths, to: str) -> Resharded:
    layout, table = Layout.parse(to), checkpoint.open_manifest(folder / STEP)
    holdings = Holdings(layout, widths, tiny_job().data.sequence_length, table.tensors)
    groups = holdings.groups(table.groups)
    return reshard(folder / STEP, into, holdings.of, layout=to, world_size=layout.world_size, groups=groups)


@pytest.mark.parametrize(("name", "frm", "to"), CASES, ids=[f"{n}: {a} to {b}" for n, a, b in CASES])
def test_the_bytes_are_those_of_the_real_ranks(
    ranks: RankPool, saved: dict[str, Path], tmp_path: Path, name: str, frm: str, to: str
) -> None:
    widths = tiny_widths(**FEATURES[name])
    arguments = {"folder": str(saved[name]), "job": tiny_job(), "widths": widths}
    _run(ranks, "load_and_save", to, {**arguments, "into": str(tmp_path / "real")})
    done = written_anew(saved[name], tmp_path / "alone", widths, to)
    real = tmp_path / "real" / STEP
    assert checkpoint.verify(done.path) == []
    assert sorted(p.name for p in done.path.iterdir()) == sorted(p.name for p in real.iterdir())
    for file in real.glob("*.safetensors"):
        assert (done.path / file.name).read_bytes() == file.read_bytes(), file.name
    ours, theirs = (json.loads((folder / NAME).read_text()) for folder in (done.path, real))
    for key in theirs.keys() - {"created", "hash"}:
        assert ours[key] == theirs[key], key


def test_there_and_back_is_the_same_checkpoint(saved: dict[str, Path], tmp_path: Path) -> None:
    widths = tiny_widths(**TIED)
    written_anew(saved["tied"], tmp_path / "a", widths, "pp=2,dp=2")
    back = written_anew(tmp_path / "a", tmp_path / "b", widths, "fsdp=2,tp=2")
    for file in (saved["tied"] / STEP).glob("*.safetensors"):
        assert (back.path / file.name).read_bytes() == file.read_bytes()


def state_of(rows: int, step: int) -> TrainState:
    return TrainState({"model/w": torch.arange(rows * 1024).reshape(rows, 1024).double()}, {"step": step})


def halves(rows: int) -> Any:
    def held(rank: int) -> dict[str, Holding]:
        box = Box((rank * rows // 2, 0), (0, 0), (rows // 2, 1024))
        return {"model/w": Holding((box,), (rank,), 8)}

    return held


def in_halves(folder: Path, into: Path, rows: int, name: str = STEP) -> Resharded:
    return reshard(folder / name, into, halves(rows), layout="fsdp=2", world_size=2, groups=[])


def test_memory_is_bounded_whatever_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PART_BYTES", 1 << 20)
    rows = 8192  # 64 MiB
    save(tmp_path, state_of(rows, 2), layout="single", identity=IDENTITY)
    tracemalloc.start()
    try:
        in_halves(tmp_path, tmp_path / "out", rows)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 40 << 20, f"{most >> 20} MiB"
    assert checkpoint.verify(tmp_path / "out" / STEP) == []


def test_a_damaged_block_is_told_and_nothing_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, state_of(8, 2), layout="single", identity=IDENTITY)
    shard = tmp_path / STEP / "rank-00000.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-5] ^= 4
    shard.write_bytes(raw)
    with pytest.raises(Failed) as told:
        in_halves(tmp_path, tmp_path, 8)
    assert told.value.exit_code == Exit.DAMAGED
    assert "model/w" in told.value.seen
    assert shard.read_bytes() == bytes(raw)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", STEP]


def test_an_older_step_is_replaced_and_latest_stays(tmp_path: Path) -> None:
    for step in (2, 4):
        save(tmp_path, state_of(8, step), layout="single", identity=IDENTITY)
    before = (tmp_path / "latest").read_text()
    assert not in_halves(tmp_path, tmp_path, 8).latest
    assert (tmp_path / "latest").read_text() == before
    assert in_halves(tmp_path, tmp_path, 8, "step-00000004").latest
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.name == "step-00000004"
    assert len(list(found.glob("rank-*"))) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", STEP, "step-00000004"]


def test_a_step_of_another_run_is_never_replaced(tmp_path: Path) -> None:
    save(tmp_path / "a", state_of(8, 2), layout="single", identity=IDENTITY)
    save(tmp_path / "b", state_of(8, 2), layout="single", identity={**IDENTITY, "run_id": "other"})
    with pytest.raises(Refused) as told:
        in_halves(tmp_path / "a", tmp_path / "b", 8)
    assert told.value.exit_code == Exit.MISMATCH


def test_a_kill_between_the_renames_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that is replaced stands aside; the next writer puts it back."""
    for step in (2, 4):
        save(tmp_path, state_of(8, step), layout="single", identity=IDENTITY)
    rename = os.rename

    def killed(source: Path, target: Path) -> None:
        if ".tmp-" in str(source):
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        in_halves(tmp_path, tmp_path, 8)
    monkeypatch.undo()
    assert not (tmp_path / STEP).exists()
    save(tmp_path, state_of(8, 6), layout="single", identity=IDENTITY, keep=9)
    assert checkpoint.verify(tmp_path / STEP) == []


def test_a_scalar_and_an_empty_tensor_are_carried(tmp_path: Path) -> None:
    state = TrainState({"a": torch.tensor(3.0), "b": torch.empty(0, 4)}, {"step": 2})
    save(tmp_path, state, layout="single", identity=IDENTITY)
    held = {n: Holding(tuple(whole(t.shape)), (0, 1), 4) for n, t in state.tensors.items()}
    reshard(tmp_path / STEP, tmp_path, lambda rank: held, layout="dp=2", world_size=2, groups=[])
    assert checkpoint.verify(tmp_path / STEP) == []

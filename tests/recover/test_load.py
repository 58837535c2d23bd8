"""A checkpoint of any layout loads on any other, bit by bit, and only into what it fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.ledger.outcome import Exit, Failed, Refused
from paceline.plan.layout import Layout
from paceline.recover import container
from paceline.recover.load import read
from paceline.recover.save import save
from paceline.recover.shards import held_boxes
from paceline.recover.state import TrainState, collect
from paceline.recover.whole import read_whole
from tests.pool import RankPool
from tests.recover import cases
from tests.recover.cases import IDENTITY, Run, Values

CASES = "tests.recover.cases"
LAYOUTS = ["single", "dp=2", "fsdp=2", "fsdp=4", "fsdp=3:zero2", "dp=2,fsdp=2", "fsdp=2:zero1"]


def assert_equal(a: Values, b: Values) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert a[name].tobytes() == b[name].tobytes(), name


@pytest.mark.parametrize("source", LAYOUTS)
def test_every_layout_to_every_layout(source: str, ranks: RankPool, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    saved = _on(ranks, source, "train_and_save", layout=source, folder=folder)
    for values in saved[1:]:
        assert_equal(values, saved[0])
    step = folder / "step-00000002"
    assert any(np.abs(v).max() > 0 for n, v in saved[0].items() if n.endswith("exp_avg_sq"))
    for target in LAYOUTS:
        for values, scalars in _on(ranks, target, "load_and_gather", layout=target, step_dir=step):
            assert_equal(values, saved[0])
            assert scalars == {"step": 2, "position": 16, "seed": 7}
    whole = {f"model/{n}": t.numpy() for n, t in read_whole(step).items()}
    assert whole.pop("model/head.weight").tobytes() == whole["model/embed.weight"].tobytes()
    assert_equal(whole, {n: v for n, v in saved[0].items() if n.startswith("model/")})


@pytest.mark.parametrize("layout", ["single", "dp=3", "fsdp=3", "dp=2,fsdp=2"])
def test_a_resumed_run_is_the_straight_run_bit_for_bit(layout: str, ranks: RankPool, tmp_path: Path) -> None:
    for straight, resumed in _on(
        ranks, layout, "straight_and_resumed", layout=layout, folder=tmp_path / "checkpoints"
    ):
        assert_equal(straight, resumed)


@pytest.mark.parametrize("optimizer", ["sgd", "plain"])
def test_other_optimizers_come_back(optimizer: str, ranks: RankPool, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    saved = ranks(2).run(f"{CASES}:train_and_save", layout="fsdp=2", folder=folder, optimizer=optimizer)
    values, _ = cases.load_and_gather(None, "single", folder / "step-00000002", optimizer)
    assert_equal(values, saved[0])


def test_plain_adamw_continues_a_fused_one(tmp_path: Path) -> None:
    saved = cases.train_and_save(None, "single", tmp_path, optimizer="fused")
    run = Run(None, "single", "plain")
    run.load(tmp_path / "step-00000002")
    assert_equal(run.gather(), saved)
    run.train(2, 3)
    assert {float(s["step"]) for s in run.optimizer.state.values()} == {3.0}


def _on(ranks: RankPool, where: str, case: str, **options: object) -> list:
    size = Layout.parse(where).world_size
    if size == 1:
        return [getattr(cases, case)(None, **options)]
    return ranks(size).run(f"{CASES}:{case}", **options)


@pytest.mark.drill(37)
def test_missing_unexpected_and_misshapen_are_all_named(tmp_path: Path) -> None:
    run = Run(None, "single")
    run.save(tmp_path, 1)
    state = run.state()
    state.tensors["model/extra"] = torch.zeros(2)
    state.tensors.pop("model/norm.bias")
    state.tensors["model/up.weight"] = torch.zeros(7, 8)
    state.tensors["model/one"] = torch.zeros(1, dtype=torch.float64)
    state.ties.clear()
    with pytest.raises(Refused) as caught:
        read(tmp_path / "step-00000001", state)
    assert caught.value.exit_code == Exit.MISMATCH
    for line in (
        "missing from the checkpoint: model/extra",
        "unexpected in the checkpoint: model/norm.bias",
        "model/up.weight: shape [7, 6] saved, [7, 8] in the model",
        "model/one: F32 saved, F64 in the model",
        "tied in the checkpoint only: model/head.weight = model/embed.weight",
    ):
        assert line in caught.value.seen


@pytest.mark.drill(37)
def test_a_refused_load_changes_nothing(tmp_path: Path) -> None:
    run = Run(None, "single")
    run.save(tmp_path, 1)
    run.train(0, 1)
    before = run.gather()
    state = run.state()
    state.tensors["model/extra"] = torch.zeros(2)
    with pytest.raises(Refused):
        read(tmp_path / "step-00000001", state)
    assert_equal(run.gather(), before)


def test_an_optimizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    Run(None, "single").save(tmp_path, 1)
    with pytest.raises(Refused, match="not of this model and optimizer") as caught:
        Run(None, "single", "sgd").load(tmp_path / "step-00000001")
    assert "momentum_buffer" in caught.value.seen
    assert "exp_avg_sq" in caught.value.seen


def test_only_the_blocks_that_are_needed_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "BLOCK_BYTES", 64)
    big = torch.arange(400, dtype=torch.float32).reshape(100, 4)
    save(tmp_path, TrainState({"model/w": big}, {"step": 1}), layout="single", identity=IDENTITY)
    asked: list[tuple[int, int]] = []
    plain = container.Reader.read

    def counted(self: container.Reader, start: int, nbytes: int) -> np.ndarray:
        asked.append((start, nbytes))
        return plain(self, start, nbytes)

    monkeypatch.setattr(container.Reader, "read", counted)
    monkeypatch.setattr("paceline.recover.load.boxes_of", lambda *_: held_rows(50, 53))
    mine = torch.zeros(100, 4)
    loaded = read(tmp_path / "step-00000001", TrainState({"model/w": mine}))
    assert torch.equal(mine[:3], big[50:53])
    assert loaded.nbytes == 3 * 16
    data = [nbytes for start, nbytes in asked if start > 8]
    assert data == [128], "rows 50–52 are bytes 800–848: blocks 12 and 13 of 64 bytes"


@pytest.mark.parametrize("at_once", [1, 40, 4096])
def test_a_large_slice_is_read_in_parts(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "BLOCK_BYTES", 64)
    monkeypatch.setattr("paceline.recover.rows.PART_BYTES", at_once)
    full = {"model/w": torch.randn(13, 3, 2), "model/v": torch.randn(101)}
    save(tmp_path, TrainState(dict(full), {"step": 1}), layout="single", identity=IDENTITY)
    mine = TrainState({name: torch.zeros_like(t) for name, t in full.items()})
    read(tmp_path / "step-00000001", mine)
    assert all(torch.equal(mine.tensors[name], full[name]) for name in full)


def held_rows(first: int, last: int) -> list:
    from paceline.recover.slices import Box

    return [Box((first, 0), (0, 0), (last - first, 4))]


def test_columns_and_strided_pieces_land_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tensor parallelism will ask of the format: a cut along another dim, several boxes of a tensor."""
    from paceline.recover.slices import Box

    full = torch.arange(48, dtype=torch.bfloat16).reshape(6, 8)
    save(tmp_path, TrainState({"model/w": full}, {"step": 1}), layout="single", identity=IDENTITY)
    parts = [Box((0, 2), (0, 0), (2, 3)), Box((4, 2), (2, 0), (2, 3))]
    monkeypatch.setattr("paceline.recover.load.boxes_of", lambda *_: parts)
    mine = torch.zeros(6, 8, dtype=torch.bfloat16)
    read(tmp_path / "step-00000001", TrainState({"model/w": mine}))
    assert torch.equal(mine[:4, :3], full[[0, 1, 4, 5]][:, 2:5])
    assert held_boxes(full)[0].shape == (6, 8)


def test_scalars_empty_tensors_and_every_dtype_survive(tmp_path: Path) -> None:
    from paceline.recover.shards import DTYPES

    tensors = {f"model/{name}": torch.arange(6).to(dtype).reshape(2, 3) for dtype, name in DTYPES.items()}
    tensors |= {"model/scalar": torch.tensor(3.5), "model/empty": torch.zeros(0, 4)}
    save(tmp_path, TrainState(dict(tensors), {"step": 0}), layout="single", identity=IDENTITY)
    found = read_whole(tmp_path / "step-00000000")
    assert len(found) == len(tensors)
    for name, tensor in tensors.items():
        mine = found[name.removeprefix("model/")]
        assert mine.dtype == tensor.dtype
        assert mine.shape == tensor.shape
        assert mine.reshape(-1).view(torch.uint8).tolist() == tensor.reshape(-1).view(torch.uint8).tolist()


def test_damage_seen_by_one_rank_fails_all(ranks: RankPool, tmp_path: Path) -> None:
    run = Run(None, "single")
    run.save(tmp_path, 1)
    run.save(tmp_path, 2)
    shard = tmp_path / "step-00000002" / "rank-00000.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1  # the last row of the smallest-named tensors: not every rank reads it
    shard.write_bytes(raw)
    errors = ranks(2).run(f"{CASES}:load_damaged", layout="fsdp=2", step_dir=tmp_path / "step-00000002")
    assert errors[0] == errors[1]
    assert errors[0]["exit_code"] == Exit.DAMAGED
    assert "rank-00000.safetensors" in errors[0]["seen"]
    assert "@1" in errors[0]["use"]


def test_whole_read_finds_damage(tmp_path: Path) -> None:
    Run(None, "single").save(tmp_path, 1)
    shard = tmp_path / "step-00000001" / "rank-00000.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 4
    shard.write_bytes(raw)
    with pytest.raises(Failed) as caught:
        read_whole(tmp_path / "step-00000001", prefix="")
    assert caught.value.exit_code == Exit.DAMAGED
    assert collect(Run(None, "single").model).scalars == {}

"""An export holds the checkpoint's weights, computes elsewhere what they compute here, and overwrites nothing."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import paceline as pl
from paceline.api.export import export
from paceline.job.families.outward import Unmapped, outward
from paceline.job.families.shape import shape_of
from paceline.ledger.folder import RunFolder
from paceline.ledger.outcome import Exit, Failed, Refused
from paceline.recover import export as outside
from paceline.recover.whole import read_whole
from tests.api.outward_cases import CASES, EXPERTS, SIZES, VOCAB, logits_of, untrained, weights_of
from tests.tiny import tiny_widths


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return untrained(tmp_path / "runs", {"tie_word_embeddings": True})


@pytest.mark.parametrize("name", CASES)
def test_a_published_family_computes_the_same(tmp_path: Path, name: str) -> None:
    family, own = CASES[name]
    folder = untrained(tmp_path / "runs", own)
    assert export(folder.path, tmp_path / "hf", to="hf")["family"] == family
    tokens = torch.randint(0, VOCAB, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = pl.load(folder.path)(tokens)
    assert torch.allclose(logits_of(tmp_path / "hf", tokens), ours, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_the_config_is_read_as_the_widths_that_were_trained(tmp_path: Path, name: str) -> None:
    widths = pl.Job(data={"train": "x.txt"}).replace(
        {f"model.{k}": v for k, v in {**SIZES, **CASES[name][1]}.items()}
    )
    ours = widths.model.widths(VOCAB)
    read = shape_of(outward(ours).config, "config.json")
    assert "beyond" not in read
    theirs = pl.Job(data={"train": "x.txt"}).replace(
        {f"model.{k}": v for k, v in read.items() if v is not None}
    )
    found = theirs.model.widths(VOCAB).to_dict()
    unused = {"intermediate_size"} if ours.num_experts and not ours.first_k_dense_replace else set()
    different = {k for k, v in ours.to_dict().items() if found[k] != v and k not in unused}
    assert different == set()


UNMAPPED: dict[str, dict[str, Any]] = {
    "LayerNorm": {"norm": "layernorm", "gated_mlp": False},
    "latent attention": {"kv_lora_rank": 8},
    "capped logits": {"final_logit_softcapping": 30.0},
    "a bias on attention's output alone": {"attention_output_bias": True},
    "shared experts": {**EXPERTS, "n_shared_experts": 1},
    "sigmoid": {**EXPERTS, "scoring_func": "sigmoid"},
    "experts after dense layers": {**EXPERTS, "first_k_dense_replace": 1},
    "full layers after the first that slides": {
        "qk_norm": True,
        "sliding_window": 4,
        "layer_types": ("sliding_attention", "full_attention") * 2,
    },
    "mistral slides in all": {
        "sliding_window": 4,
        "layer_types": ("full_attention", "sliding_attention") * 2,
    },
    "head_dim of its own": {"attention_bias": True, "head_dim": 16},
}


@pytest.mark.parametrize("why", UNMAPPED)
def test_what_no_family_computes_is_refused_by_what_stands_against_it(why: str) -> None:
    with pytest.raises(Unmapped) as told:
        outward(tiny_widths(**UNMAPPED[why]))
    assert why in str(told.value)


def test_an_unmapped_model_is_exported_by_its_own_names(tmp_path: Path) -> None:
    folder = untrained(tmp_path / "runs", {**EXPERTS, "n_shared_experts": 1, "scoring_func": "sigmoid"})
    with pytest.raises(Refused) as told:
        export(folder.path, tmp_path / "hf", to="hf")
    assert told.value.exit_code == Exit.USAGE
    assert "shared experts" in told.value.seen
    assert "--to safetensors" in told.value.use
    assert not (tmp_path / "hf").exists()
    done = export(folder.path, tmp_path / "all", to="safetensors")
    assert done["family"] is None
    whole, found = read_whole(folder.checkpoints / "step-00000002"), weights_of(tmp_path / "all")
    assert set(found) == set(whole)
    assert any(name.endswith("e_score_correction_bias") for name in found)
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())
    config = json.loads((tmp_path / "all" / "config.json").read_text())
    assert (config["model_type"], config["n_shared_experts"], config["vocab_size"]) == ("paceline", 1, VOCAB)


def test_a_tied_weight_stands_once(run: RunFolder, tmp_path: Path) -> None:
    export(run.path, tmp_path / "out")
    whole, found = read_whole(run.checkpoints / "step-00000002"), weights_of(tmp_path / "out")
    assert set(whole) - set(found) == {"lm_head.weight"}
    assert all(torch.equal(found[name], whole[name]) for name in found)
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_large_ones_are_cut_and_the_index_says_where(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside.export, "__kwdefaults__", {"most_file_bytes": 20_000})
    done = export(run.path, tmp_path / "out")
    assert len(done["files"]) > 2
    assert done["files"][0] == f"model-00001-of-{len(done['files']):05d}.safetensors"
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    found = weights_of(tmp_path / "out")
    assert set(index["weight_map"]) == set(found)
    assert index["metadata"]["total_size"] == done["bytes"] == sum(t.numel() * 8 for t in found.values())
    for key, name in index["weight_map"].items():
        with safe_open(tmp_path / "out" / name, "pt") as file:
            assert key in file.keys()  # noqa: SIM118
    for name in done["files"]:
        held = [found[key] for key, file in index["weight_map"].items() if file == name]
        assert len(held) == 1 or sum(t.numel() * 8 for t in held) <= 20_000, name


@pytest.mark.parametrize("there", ["a file in it", "a file of its name"])
def test_nothing_is_overwritten(run: RunFolder, tmp_path: Path, there: str) -> None:
    out = tmp_path / "out"
    if there == "a file in it":
        out.mkdir()
        (out / "mine").write_text("mine")
    else:
        out.write_text("mine")
    with pytest.raises(Refused) as told:
        export(run.path, out)
    assert told.value.exit_code == Exit.USAGE
    assert ((out / "mine") if out.is_dir() else out).read_text() == "mine"


def test_an_empty_folder_is_taken_and_one_that_fills_meanwhile_is_not(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    assert export(run.path, tmp_path / "empty")["path"] == str(tmp_path / "empty")
    sync = outside.atomic.sync_folder

    def fills(folder: Path) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "theirs").write_text("")
        sync(folder)

    monkeypatch.setattr(outside.atomic, "sync_folder", fills)
    with pytest.raises(Refused):
        export(run.path, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["theirs"]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_damaged_checkpoint_is_told_and_nothing_is_left(run: RunFolder, tmp_path: Path) -> None:
    shard = run.checkpoints / "step-00000002" / "rank-00000.safetensors"
    raw = bytearray(shard.read_bytes())
    with safe_open(shard, "pt") as file:
        assert "model/norm.weight" in file.keys()  # noqa: SIM118
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    raw[8 + int.from_bytes(raw[:8], "little") + header["model/norm.weight"]["data_offsets"][0]] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(Failed) as told:
        export(run.path, tmp_path / "out")
    assert told.value.exit_code == Exit.DAMAGED
    assert "model/norm.weight" in told.value.seen
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_a_full_disk_leaves_nothing(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, raw: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Failed) as told:
        export(run.path, tmp_path / "out")
    monkeypatch.undo()
    assert told.value.exit_code == Exit.STORE
    assert "not exported" in told.value.message
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]

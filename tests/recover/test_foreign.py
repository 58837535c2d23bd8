"""Weights of another program: read as what they are, or told by file and key; nothing beside them is opened."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from paceline.ledger.outcome import Exit, Failed, PacelineError, Refused
from paceline.recover.container import ITEM_BYTES
from paceline.recover.foreign import INDEX, Imported, Weights, Whole, same
from paceline.recover.slices import Box
from paceline.recover.stream import stream

RESULT = {"F64": np.float64, "F32": np.float32}


def values(source: Imported, name: str, dtype: str, box: Box) -> np.ndarray:
    raw = b"".join(bytes(block) for block in stream(source, name, dtype, box)(1 << 20))
    return np.frombuffer(raw, RESULT[dtype]).reshape(box.shape)


@pytest.mark.parametrize("theirs", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ours", ["F64", "F32"])
def test_floats_are_converted_as_torch_does(tmp_path: Path, theirs: torch.dtype, ours: str) -> None:
    tensor = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).to(theirs)
    save_file({"w": tensor}, tmp_path / "w.safetensors")
    with Weights(tmp_path / "w.safetensors") as weights:
        source = Imported(weights, {"w": Whole((7, 5), ours, (("w", None),))})
        part = values(source, "w", ours, Box((2, 1), (0, 0), (4, 3)))
    wide = torch.float64 if ours == "F64" else torch.float32
    assert np.array_equal(part, tensor.to(wide)[2:6, 1:4].numpy())


def test_experts_are_stacked_and_values_fill(tmp_path: Path) -> None:
    parts = {f"e.{n}": torch.randn(3, 4) for n in range(5)}
    save_file(parts, tmp_path / "w.safetensors")
    whole = {
        "e": Whole((5, 3, 4), "F32", tuple((f"e.{n}", n) for n in range(5))),
        "f": Whole((6,), "F32", value=0.25),
        "step": Whole((), "F64"),
    }
    with Weights(tmp_path) as weights:
        source = Imported(weights, whole)
        stacked = torch.stack([parts[f"e.{n}"] for n in range(5)]).numpy()
        box = Box((1, 1, 0), (0, 0, 0), (3, 2, 4))
        assert np.array_equal(values(source, "e", "F32", box), stacked[1:4, 1:3])
        assert values(source, "f", "F32", Box((2,), (0,), (3,))).tolist() == [0.25] * 3
        assert values(source, "step", "F64", Box((), (), ())) == 0.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_a_value_that_is_not_finite_is_told_with_its_place(tmp_path: Path, bad: float) -> None:
    tensor = torch.zeros(4, 3, dtype=torch.float64)
    tensor[2, 1] = bad
    save_file({"w": tensor}, tmp_path / "w.safetensors")
    with Weights(tmp_path) as weights, pytest.raises(Failed) as told:
        values(
            Imported(weights, {"w": Whole((4, 3), "F32", (("w", None),))}),
            "w",
            "F32",
            Box((0, 0), (0, 0), (4, 3)),
        )
    assert told.value.exit_code == Exit.DAMAGED
    assert told.value.seen == f"w[2, 1] = {'nan' if bad != bad else 'inf'}"
    assert "w.safetensors" in told.value.message


def test_the_index_says_which_files_are_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(2)}, tmp_path / "two.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "of-somebody-else.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    with Weights(tmp_path) as weights:
        assert {key: file for key, (file, _) in weights.keys.items()} == index["weight_map"]


def test_a_cache_of_links_is_read(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "blobs" / "0a1b")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "model.safetensors").symlink_to(tmp_path / "blobs" / "0a1b")
    with Weights(tmp_path / "here") as weights:
        assert list(weights.keys) == ["a"]


def test_same_compares_bits(tmp_path: Path) -> None:
    save_file(
        {"a": torch.ones(9), "b": torch.ones(9), "c": torch.zeros(9), "d": torch.ones(8)},
        tmp_path / "w.safetensors",
    )
    with Weights(tmp_path) as weights:
        assert [same(weights, "a", other, part_bytes=16) for other in "bcd"] == [True, False, False]


class Planted:
    """What runs if a pickle is opened."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return (exec, ("raise SystemExit('a pickle was opened')",))


def _pickle(folder: Path) -> Path:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Planted()))
    return folder


def _pickle_by_another_name(folder: Path) -> Path:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Planted()))
    return folder


def _checkpoint_file(folder: Path) -> Path:
    torch.save({"w": torch.ones(2)}, folder / "model.pt")
    return folder / "model.pt"


def _index_out_of_the_folder(folder: Path) -> Path:
    save_file({"a": torch.ones(2)}, folder.parent / "elsewhere.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    return folder


def _index_of_a_file_that_is_not_there(folder: Path) -> Path:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    return folder


def _index_that_is_none(folder: Path) -> Path:
    (folder / INDEX).write_text("[" * 100_000)
    return folder


def _one_key_twice(folder: Path) -> Path:
    for name in ("one", "two"):
        save_file({"a": torch.ones(2)}, folder / f"{name}.safetensors")
    return folder


def _header_that_lies(folder: Path) -> Path:
    head = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(8))
    return folder


def _cut_short(folder: Path) -> Path:
    save_file({"a": torch.ones(64)}, folder / "model.safetensors")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1])
    return folder


BAD: dict[Callable[[Path], Path], tuple[Exit, str]] = {
    _pickle: (Exit.MISSING, "pytorch_model.bin"),
    _checkpoint_file: (Exit.MISSING, "model.pt"),
    lambda folder: folder: (Exit.MISSING, "an empty folder"),
    lambda folder: folder / "nowhere": (Exit.MISSING, "nothing there"),
    _pickle_by_another_name: (Exit.DAMAGED, "header"),
    _index_out_of_the_folder: (Exit.DAMAGED, "../elsewhere"),
    _index_of_a_file_that_is_not_there: (Exit.DAMAGED, "is missing"),
    _index_that_is_none: (Exit.DAMAGED, "weight_map"),
    _one_key_twice: (Exit.DAMAGED, "is in one.safetensors too"),
    _header_that_lies: (Exit.DAMAGED, "a"),
    _cut_short: (Exit.DAMAGED, "bytes"),
}


@pytest.mark.parametrize("made", BAD)
def test_what_is_not_weights_is_told(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    code, seen = BAD[made]
    (tmp_path / "in").mkdir()
    with pytest.raises(PacelineError) as told:
        Weights(made(tmp_path / "in"))
    assert told.value.exit_code == code
    assert seen in told.value.seen
    assert isinstance(told.value, Refused if code == Exit.MISSING else Failed)


def test_every_float_of_ours_has_a_width() -> None:
    assert all(ITEM_BYTES[name] == np.dtype(kind).itemsize for name, kind in RESULT.items())

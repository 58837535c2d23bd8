"""Every kind of damage is found, named, and answered with the checkpoint that is still good."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.ledger.outcome import Exit, Failed, PacelineError, Refused
from paceline.recover import checkpoint, container, manifest
from paceline.recover.whole import read_whole
from tests.pool import RankPool
from tests.recover.cases import Run
from tests.recover.test_save import put

CASES = "tests.recover.cases"


@pytest.fixture(scope="module")
def sound(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with steps 2 and 4 of a two-rank run; tests copy it."""
    folder = tmp_path_factory.mktemp("sound") / "checkpoints"
    ranks(2).run(f"{CASES}:train_and_save", layout="fsdp=2", folder=folder)
    ranks(2).run(f"{CASES}:train_and_save", layout="fsdp=2", folder=folder, steps=4)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "checkpoints"))


def load_everything(folder: Path) -> None:
    """What a resume does: find the latest, then read all of it."""
    found = checkpoint.latest(folder)
    assert found is not None
    run = Run(None, "single")
    run.load(found)


def test_a_sound_checkpoint_has_no_problem(folder: Path) -> None:
    assert checkpoint.latest(folder) == folder / "step-00000004"
    assert checkpoint.verify(folder / "step-00000004") == []
    load_everything(folder)


@pytest.mark.drill(23)
def test_every_flipped_bit_is_found_and_its_file_named(folder: Path) -> None:
    """200 random bits over all files, headers and ``latest`` included; each also stops a resume."""
    step = folder / "step-00000004"
    files = [*sorted(step.iterdir()), folder / "latest"]
    assert len(files) == 4
    random.seed(1)
    tensors = set()
    for number in range(200):
        path = files[number % len(files)]
        good = path.read_bytes()
        bit = random.randrange(len(good) * 8)
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        with pytest.raises(PacelineError) as caught:
            load_everything(folder)
        assert caught.value.exit_code == Exit.DAMAGED or "newer" in caught.value.message
        assert path.name in caught.value.message + caught.value.seen or path.name == "latest"
        if path.name != "latest":
            found = checkpoint.verify(step)
            assert [p.file for p in found] == [path.name]
            tensors.update(p.tensor for p in found)
            assert "@2" in caught.value.use or "newer" in caught.value.message
        path.write_bytes(good)
    assert any(t.startswith("optimizer/") for t in tensors), "bits fell into data, and its tensor is named"
    load_everything(folder)


@pytest.mark.drill(24)
@pytest.mark.parametrize("cut", [1, 9, None])
@pytest.mark.parametrize("name", ["rank-00001.safetensors", "manifest.json"])
def test_a_truncated_file(name: str, cut: int | None, folder: Path) -> None:
    path = folder / "step-00000004" / name
    os.truncate(path, 0 if cut is None else path.stat().st_size - cut)
    with pytest.raises(Failed) as caught:
        checkpoint.latest(folder)
    assert caught.value.exit_code == Exit.DAMAGED
    assert name in caught.value.seen
    assert "@2" in caught.value.use


def swap(step: Path) -> None:
    a, b = step / "rank-00000.safetensors", step / "rank-00001.safetensors"
    a.rename(step / "x")
    b.rename(a)
    (step / "x").rename(b)


def stale(step: Path) -> None:
    shutil.copy(step.parent / "step-00000002" / "rank-00001.safetensors", step / "rank-00001.safetensors")


def missing(step: Path) -> None:
    (step / "rank-00001.safetensors").unlink()


def linked(step: Path) -> None:
    (step / "rank-00001.safetensors").rename(step.parent.parent / "elsewhere")
    (step / "rank-00001.safetensors").symlink_to(step.parent.parent / "elsewhere")


def replaced_by_a_folder(step: Path) -> None:
    missing(step)
    (step / "rank-00001.safetensors").mkdir()


def both_missing(step: Path) -> None:
    missing(step)
    (step / "rank-00000.safetensors").unlink()


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(swap, marks=pytest.mark.drill(25)),
        pytest.param(stale, marks=pytest.mark.drill(26)),
        pytest.param(missing, marks=pytest.mark.drill(20, 27)),
        pytest.param(both_missing, marks=pytest.mark.drill(27)),
        pytest.param(linked, marks=pytest.mark.drill(57)),
        replaced_by_a_folder,
    ],
)
def test_files_that_are_not_the_ones_written(harm: Callable[[Path], None], folder: Path) -> None:
    harm(folder / "step-00000004")
    problems = checkpoint.verify(folder / "step-00000004")
    assert "rank-00001.safetensors" in {p.file for p in problems}
    if harm in (swap, both_missing):
        assert "rank-00000.safetensors" in {p.file for p in problems}
    with pytest.raises(Failed) as caught:
        load_everything(folder)
    assert ".safetensors" in caught.value.message
    assert caught.value.exit_code == Exit.DAMAGED
    assert "@2" in caught.value.use


def test_a_file_too_many_is_told(folder: Path) -> None:
    (folder / "step-00000004" / "rank-00009.safetensors").write_bytes(b"old")
    (problem,) = checkpoint.verify(folder / "step-00000004")
    assert str(problem) == "rank-00009.safetensors: is not part of this checkpoint"


def test_an_empty_folder_with_a_step_name_is_not_a_checkpoint(tmp_path: Path) -> None:
    put(tmp_path, 10)
    (tmp_path / "step-00000020").mkdir()
    (tmp_path / "20").mkdir()
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000010"
    rows = checkpoint.list_checkpoints(tmp_path)
    assert [(r["step"], r["complete"]) for r in rows] == [(10, True), (20, False)]
    (tmp_path / "latest").unlink()
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000010"


def test_nothing_saved_is_none(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "nowhere") is None
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.list_checkpoints(tmp_path) == []


def test_without_latest_two_runs_in_one_folder_are_not_guessed_at(tmp_path: Path) -> None:
    put(tmp_path, 1000, run="old")
    put(tmp_path, 10, run="new")
    (tmp_path / "latest").unlink()
    with pytest.raises(Failed, match="several runs"):
        checkpoint.latest(tmp_path)


@pytest.mark.parametrize("harm", ["truncated", "no manifest", "no shard"])
@pytest.mark.parametrize("steps_saved", [(2,), (2, 4)])
def test_without_latest_no_older_step_answers_for_a_damaged_one(
    harm: str, steps_saved: tuple[int, ...], tmp_path: Path
) -> None:
    for step in steps_saved:
        put(tmp_path, step)
    (tmp_path / "latest").unlink()
    newest = tmp_path / f"step-{steps_saved[-1]:08d}"
    if harm == "truncated":
        os.truncate(newest / "manifest.json", 10)
    else:
        (newest / ("manifest.json" if harm == "no manifest" else "rank-00000.safetensors")).unlink()
    with pytest.raises(Failed) as caught:
        checkpoint.latest(tmp_path)
    assert caught.value.exit_code == Exit.DAMAGED
    assert ("@2" in caught.value.use) == (len(steps_saved) == 2)


def test_a_step_by_its_number_is_found_damaged_too(tmp_path: Path) -> None:
    folder = tmp_path / "lm" / "checkpoints"
    folder.parent.mkdir()
    for step in (2, 4):
        put(folder, step)
    assert checkpoint.of_step(folder, 2) == folder / "step-00000002"
    assert checkpoint.of_step(folder, 3) is None
    (folder / "step-00000002" / "manifest.json").write_text("")
    assert checkpoint.of_step(folder, 2) == folder / "step-00000002"
    shutil.rmtree(folder / "step-00000004")
    (folder / "step-00000002" / "manifest.json").unlink()
    with pytest.raises(Failed) as caught:
        checkpoint.of_step(folder, 4)
    assert caught.value.exit_code == Exit.DAMAGED


def test_latest_that_names_what_is_gone(folder: Path) -> None:
    shutil.rmtree(folder / "step-00000004")
    with pytest.raises(Failed) as caught:
        checkpoint.latest(folder)
    assert "step-00000004" in caught.value.seen
    assert "@2" in caught.value.use


def test_when_all_is_damaged_it_says_so(tmp_path: Path) -> None:
    put(tmp_path, 1)
    os.truncate(tmp_path / "step-00000001" / "manifest.json", 10)
    with pytest.raises(Failed) as caught:
        checkpoint.latest(tmp_path)
    assert "no other checkpoint here is good" in caught.value.use


@pytest.mark.drill(38)
def test_a_newer_format_names_the_version_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "FORMAT", 2)
    monkeypatch.setattr("paceline.recover.write.__version__", "9.1.0")
    step = put(tmp_path, 1).path
    monkeypatch.undo()
    with pytest.raises(Refused) as caught:
        read_whole(step)
    assert caught.value.exit_code == Exit.MISMATCH
    assert "9.1.0" in caught.value.use
    assert checkpoint.verify(step)[0].what == "step-00000001 was written by a newer Paceline"


def forge(step: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A manifest that lies and has a right hash, as an attacker would write it."""
    table = json.loads((step / "manifest.json").read_text())
    change(table)
    table.pop("hash")
    own = container.digest(manifest._canonical(table))
    (step / "manifest.json").write_bytes(manifest._canonical({**table, "hash": own}))


def slice_of(table: dict[str, Any]) -> dict[str, Any]:
    return table["tensors"]["model/w"]["slices"][0]  # type: ignore[no-any-return]


def rename_file(name: str) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        table["files"] = {name: table["files"]["rank-00000.safetensors"]}
        slice_of(table)["file"] = name

    return change


def huge(table: dict[str, Any]) -> None:
    table["tensors"]["model/w"]["shape"] = [1 << 40]
    slice_of(table)["shape"] = [1 << 40]


LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    **{
        f"path {name!r}": (rename_file(name), "names a file")
        for name in (
            "../../secret.safetensors", "/etc/passwd", "..\\x", "rank-00000.safetensors\0", "",
            "a/rank-00000.safetensors", "./rank-00000.safetensors", "rank-00000.safetensors\n",
            "rank-٠٠٠٠٠.safetensors",
        )
    },
    "shape 2^40": (huge, "claims more bytes"),
    "shape 2^40 and nothing behind it": (
        lambda t: t["tensors"]["model/w"].update(shape=[1 << 40]), "slices hold 64 of",
    ),
    "an overlap": (lambda t: t["tensors"]["model/w"]["slices"].append(dict(slice_of(t))), "128 of 64"),
    "negative start": (lambda t: slice_of(t).update(starts=[-1]), "starts or shape"),
    "a number too large": (lambda t: slice_of(t).update(starts=[1 << 80]), "outside"),
    "another dtype": (lambda t: t["tensors"]["model/w"].update(dtype="F64"), "claims more bytes|F64"),
    "unknown dtype": (lambda t: t["tensors"]["model/w"].update(dtype="PICKLE"), "dtype"),
    "a key that is not there": (lambda t: slice_of(t).update(key="none"), "missing from the file"),
    "an unlisted file": (lambda t: slice_of(t).update(file="rank-00007.safetensors"), "does not list"),
    "a hash that is none": (lambda t: slice_of(t).update(hashes=["x"]), "not a hash"),
    "too few hashes": (lambda t: slice_of(t).update(hashes=[]), "number of blocks"),
    "tensors as a list": (lambda t: t.update(tensors=[]), "not a manifest"),
    "no files": (lambda t: t.pop("files"), "not a manifest"),
    "a tie to nothing": (lambda t: t.update(ties={"model/a": "model/b"}), "ties a name"),
    "a step that is no number": (lambda t: t.update(step="2"), "not a manifest"),
    "format zero": (lambda t: t.update(format=0), "format"),
}  # fmt: skip


@pytest.mark.drill(57, 58)
@pytest.mark.parametrize("name", LIES)
def test_a_manifest_that_lies_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_bytes(b"secret")
    step = put(tmp_path / "c", 1).path
    change, told = LIES[name]
    forge(step, change)
    with pytest.raises(PacelineError, match="damaged") as caught:
        read_whole(step)
    assert any(part in caught.value.seen for part in told.split("|")), caught.value.seen
    assert checkpoint.verify(step)


@pytest.mark.drill(57)
def test_a_step_folder_that_is_a_link_is_no_checkpoint(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", 7)
    put(tmp_path / "c", 1)
    (tmp_path / "c" / "step-00000007").symlink_to(tmp_path / "elsewhere" / "step-00000007")
    (tmp_path / "c" / "latest").write_bytes((tmp_path / "elsewhere" / "latest").read_bytes())
    with pytest.raises(Failed):
        checkpoint.latest(tmp_path / "c")
    assert [r["step"] for r in checkpoint.list_checkpoints(tmp_path / "c")] == [1]


@pytest.mark.drill(57)
@pytest.mark.parametrize(
    "text", ["../../elsewhere/step-00000007 " + "0" * 32 + "\n", "step-00000001\n", "", "\0" * 50]
)
def test_latest_that_is_not_a_name(text: str, tmp_path: Path) -> None:
    put(tmp_path, 1)
    (tmp_path / "latest").write_text(text)
    with pytest.raises(Failed) as caught:
        checkpoint.latest(tmp_path)
    assert caught.value.exit_code == Exit.DAMAGED
    assert "@1" in caught.value.use


@pytest.mark.drill(56)
def test_no_pickle_is_ever_read(tmp_path: Path) -> None:
    """A file that would run code when unpickled is refused by format, in each place that is read."""
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (open, (str(tmp_path / "marker"), "w"))

    for name in ("manifest.json", "rank-00000.safetensors"):
        step = put(tmp_path / name, 1).path
        (step / name).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(Failed):
            read_whole(step)
        assert checkpoint.verify(step)
    assert not (tmp_path / "marker").exists()


def test_list_and_inspect(folder: Path) -> None:
    os.truncate(folder / "step-00000002" / "rank-00000.safetensors", 3)
    two, four = checkpoint.list_checkpoints(folder)
    assert (two["step"], two["complete"], two["latest"]) == (2, False, False)
    assert "rank-00000.safetensors: 3 bytes" in two["problem"]
    assert (four["step"], four["complete"], four["latest"]) == (4, True, True)
    assert (four["layout"], four["world_size"], four["run_id"]) == ("fsdp=2", 2, "run-a")
    seen = checkpoint.inspect(folder / "step-00000004")
    assert seen["scalars"] == {"step": 4, "position": 32, "seed": 7}
    assert seen["ties"] == {"model/head.weight": "model/embed.weight"}
    assert seen["tensors"]["model/embed.weight"] == {"shape": [11, 6], "dtype": "F32", "slices": 2}
    assert set(seen["namespaces"]) == {"model", "optimizer"}


def test_looking_never_imports_torch() -> None:
    code = "import sys, paceline.recover.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""A damaged checkpoint is told (53) and no older one answers in its place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import paceline as pl
from paceline.api.checkpoints import checkpoints_of, verify
from paceline.api.load import locate
from paceline.api.runs import find_checkpoint
from paceline.api.sample import sample
from paceline.ledger.folder import RunFolder, create
from paceline.ledger.outcome import Exit, PacelineError
from paceline.ledger.status import Status
from paceline.recover.checkpoint import inspect
from tests.recover.test_save import put

SHARD = "rank-00000.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that saved steps 2 and 4."""
    made = create(tmp_path / "runs", "lm")
    Status(state="done").write(made.status)
    for step in (2, 4):
        put(made.checkpoints, step)
    return made


def flipped(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


HARMS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a bit of a shard": (SHARD, flipped),
    "a shard cut short": (SHARD, cut),
    "a shard gone": (SHARD, Path.unlink),
    "a bit of the manifest": ("manifest.json", flipped),
    "the manifest cut short": ("manifest.json", cut),
    "the manifest gone": ("manifest.json", Path.unlink),
}


def code_of(action: Callable[[], object]) -> PacelineError:
    with pytest.raises(PacelineError) as caught:
        action()
    return caught.value


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("step", ["", "@4"])
def test_verify_names_the_damaged_file_of_the_step_that_was_asked_for(
    folder: RunFolder, harm: str, step: str
) -> None:
    assert verify(find_checkpoint(f"{folder.path}{step}")[1])["step"] == 4
    name, change = HARMS[harm]
    change(folder.checkpoints / "step-00000004" / name)
    error = code_of(lambda: verify(find_checkpoint(f"{folder.path}{step}")[1]))
    assert error.exit_code == Exit.DAMAGED
    assert name in error.seen
    assert "lm@2" in error.use
    assert verify(find_checkpoint(f"{folder.path}@2")[1])["step"] == 2


@pytest.mark.parametrize("harm", [h for h in HARMS if h != "a bit of a shard"])
def test_inspect_does_not_answer_from_another_step(folder: RunFolder, harm: str) -> None:
    name, change = HARMS[harm]
    change(folder.checkpoints / "step-00000004" / name)
    for word in (str(folder.path), f"{folder.path}@4"):
        error = code_of(lambda word=word: inspect(find_checkpoint(word)[1]))  # type: ignore[misc]
        assert error.exit_code == Exit.DAMAGED


@pytest.mark.parametrize(
    ("take", "harm"),
    # A bit inside a tensor is found when the tensor is read, which `load` does first.
    [
        (pl.load, "a bit of a shard"),
        *((t, h) for t in (sample, pl.load, locate) for h in HARMS if h != "a bit of a shard"),
    ],
)
def test_no_model_comes_from_an_older_step_than_latest_names(
    folder: RunFolder, take: Callable[[str], object], harm: str
) -> None:
    name, change = HARMS[harm]
    change(folder.checkpoints / "step-00000004" / name)
    error = code_of(lambda: take(str(folder.path)))
    assert error.exit_code == Exit.DAMAGED
    assert "lm@2" in error.use


@pytest.mark.parametrize("latest", [True, False])
@pytest.mark.parametrize("harm", [h for h in HARMS if h != "a bit of a shard"])
def test_a_single_checkpoint_that_is_damaged_is_not_nothing(
    folder: RunFolder, harm: str, latest: bool
) -> None:
    shutil.rmtree(folder.checkpoints / "step-00000002")
    if not latest:
        (folder.checkpoints / "latest").unlink()
    name, change = HARMS[harm]
    change(folder.checkpoints / "step-00000004" / name)
    for word in (str(folder.path), f"{folder.path}@4"):
        error = code_of(lambda word=word: verify(find_checkpoint(word)[1]))  # type: ignore[misc]
        assert error.exit_code == Exit.DAMAGED
        assert "no other checkpoint here is good" in error.use
    assert [(row.step, row.complete) for row in checkpoints_of(folder)] == [(4, False)]


def test_a_step_that_latest_names_and_that_is_gone_is_damage_and_another_is_absent(folder: RunFolder) -> None:
    shutil.rmtree(folder.checkpoints / "step-00000004")
    assert code_of(lambda: find_checkpoint(f"{folder.path}@4")).exit_code == Exit.DAMAGED
    error = code_of(lambda: find_checkpoint(f"{folder.path}@3"))
    assert (error.exit_code, error.use) == (Exit.NOTHING_TO_RESUME, "lm@2")


def test_a_latest_that_is_torn_does_not_hide_a_step_that_is_named(folder: RunFolder) -> None:
    (folder.checkpoints / "latest").write_text("")
    assert code_of(lambda: find_checkpoint(folder.path)).exit_code == Exit.DAMAGED
    assert find_checkpoint(f"{folder.path}@2")[1].name == "step-00000002"


def test_a_folder_that_is_no_checkpoint_is_not_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "job.toml").write_text("")
    assert code_of(lambda: find_checkpoint(tmp_path / "project")).exit_code == Exit.USAGE

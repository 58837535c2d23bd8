"""D28-D30, D33-D36 as whole runs; what a checkpoint survives by itself is drilled in tests/recover."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.ledger.outcome import Exit, PacelineError
from paceline.recover import checkpoint
from tests.drills.small import (
    Command,
    assert_same_bits,
    events,
    fired,
    last_step,
    plant,
    rows,
    steps_done,
    train,
    wait_for,
    write_tiny,
)
from tests.small_disk import mounted


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("a file system is mounted read-only, which needs root")
    place = tmp_path / "store"
    place.mkdir()
    for argv in (["-t", "tmpfs", "-o", "size=5m", "tmpfs"], ["-o", "remount,ro"]):
        done = subprocess.run(["mount", *argv, place], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this kernel lets nobody mount here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.drill(28)
def test_a_run_that_could_not_save_does_not_begin(read_only: Path, tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path)
    said: list[dict[str, Any]] = []
    with pytest.raises(PacelineError) as caught:
        pl.train(job, layout="dp=2", set={"run.root": str(read_only / "runs")}, on_row=said.append)
    assert caught.value.exit_code == Exit.STORE
    assert str(read_only) in str(caught.value)
    assert [row for row in said if row["kind"] in ("train", "start")] == []


@pytest.mark.drill(29)
@pytest.mark.parametrize("what", ["checkpoints", "run"])
def test_a_folder_that_is_removed_while_it_is_needed_is_not_silence(
    what: str, tmp_path: Path, cache: str
) -> None:
    """The folder of the checkpoints is made again, and the next save is whole; without the run's, it fails."""
    job = write_tiny(tmp_path)
    plant(job, "sleep", step=1, every_step=True, seconds=0.02)
    run = tmp_path / "runs" / "removed"
    removed: list[int] = []

    def on_row(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] >= 8 and not removed:
            removed.append(row["step"])
            shutil.rmtree(run / "checkpoints" if what == "checkpoints" else run)

    if what == "run":
        with pytest.raises(PacelineError) as caught:
            train(job, "removed", on_row=on_row)
        assert caught.value.exit_code == Exit.STORE
    else:
        done = train(job, "removed", on_row=on_row)
        assert done.state == "done"
        assert [e["step"] for e in events(done, "checkpoint") if e["step"] > 8] == [10, 15, 20, 25, 30]
        found = checkpoint.latest(run / "checkpoints")
        assert found is not None
        assert checkpoint.verify(found) == []
    assert removed
    assert fired(job)


@pytest.mark.drill(30)
def test_a_save_that_fails_behind_training_ends_it_at_the_next_step(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path)
    plant(job, "save_fails", rank=0, step=10, saved=5)
    with pytest.raises(PacelineError) as caught:
        train(job, "unsaved")
    assert fired(job)
    assert caught.value.exit_code == Exit.STORE
    run = tmp_path / "runs" / "unsaved"
    assert 10 <= steps_done(run) < 30
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    assert found.name == "step-00000005"
    assert checkpoint.verify(found) == []


@pytest.mark.drill(34)
def test_a_second_launch_of_a_run_is_refused_and_a_dead_ones_lock_is_no_obstacle(
    tmp_path: Path, cache: str
) -> None:
    job = write_tiny(tmp_path)
    plant(job, "sleep", step=1, every_step=True, seconds=0.1)
    run = tmp_path / "runs" / "twice"
    with Command(job, "train", "tiny.toml", "--layout", "dp=2", "--name", "twice") as one:
        wait_for(lambda: last_step(run) >= 2)
        host, pid, started = (run / "lock").read_text().splitlines()
        assert (host, pid) == (os.uname().nodename, str(one.process.pid))
        assert started
        before = last_step(run)
        with pytest.raises(PacelineError) as caught:
            train(job, "twice", resume=True)
        assert caught.value.exit_code == Exit.LOCKED
        assert f"{pid}" in caught.value.seen
        assert host in caught.value.seen
        wait_for(lambda: last_step(run) > before)  # the first is not disturbed
        wait_for(lambda: (run / "checkpoints" / "latest").exists())
        os.killpg(one.process.pid, 9)
    assert (run / "lock").exists(), "the dead launcher has left its lock"
    (tmp_path / "fault.json").unlink()
    assert train(job, "twice", resume=True).state == "done"


@pytest.mark.drill(35)
@pytest.mark.parametrize(("before", "after"), [("dp=4", "dp=2"), ("dp=2", "dp=3"), ("tp=2", "pp=2")])
def test_another_number_of_ranks_goes_on_with_the_same_samples(
    before: str, after: str, tmp_path: Path, cache: str
) -> None:
    """Eight rows on three ranks: one row of weight zero fills up, so it is no other batch."""
    job = write_tiny(tmp_path, train__precision='"fp64"', train__steps="12")
    straight = train(job, "straight", layout="single")
    plant(job, "sleep", step=1, every_step=True, seconds=0.02)
    half = train(
        job, "moved", layout=before,
        on_row=lambda row: False if row["kind"] == "train" and row["step"] >= 5 else None,
    )  # fmt: skip
    assert half.state == "preempted"
    assert half.status.step < 12
    moved = train(job, "moved", layout=after, resume=True)
    assert moved.state == "done"
    assert str(moved.layout).startswith(after)
    ours, theirs = moved.metrics(), straight.metrics()
    assert ours["samples"].tolist() == theirs["samples"].tolist()
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-9)


@pytest.mark.drill(35)
def test_a_number_of_ranks_that_the_model_cannot_have_is_refused_with_those_that_it_can(
    tmp_path: Path, cache: str
) -> None:
    job = write_tiny(tmp_path, train__steps="5")
    train(job, "fixed")
    with pytest.raises(PacelineError) as caught:
        train(job, "fixed", layout="tp=3", resume=True, set={"train.steps": 8})
    assert caught.value.exit_code == Exit.RULE
    assert "tp = 1, 2, 4" in caught.value.allowed


@pytest.mark.drill(36)
def test_what_changes_at_a_resume_is_refused_listed_or_asked_for(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path, train__steps="5")
    first = train(job, "changed")
    for key, value, told in (
        ("model.hidden_size", 64, "model.hidden_size"),
        ("train.seed", 9, "--allow-change train.seed"),
        ("train.global_batch_size", 4, "--allow-change train.global_batch_size"),
    ):
        with pytest.raises(PacelineError) as caught:
            train(job, "changed", resume=True, set={"train.steps": 8, key: value})
        assert caught.value.exit_code == Exit.MISMATCH
        assert told in str(caught.value) + caught.value.use
    said: list[dict[str, Any]] = []
    done = train(
        job, "changed", resume=True, allow_change=["train.seed"],
        set={"train.steps": 8, "train.seed": 9, "checkpoint.keep": 3}, on_message=said.append,
    )  # fmt: skip
    assert done.path == first.path
    text = "\n".join(str(row) for row in said)
    for key in ("train.seed", "checkpoint.keep", "train.steps"):
        assert key in text, f"{key} changed, and is not listed"


@pytest.mark.drill(48)
def test_data_that_is_swapped_during_the_run_is_noticed_at_the_resume(tmp_path: Path, cache: str) -> None:
    import numpy as np

    job = write_tiny(tmp_path)
    straight = train(job, "straight")
    plant(job, "sleep", step=1, every_step=True, seconds=0.02)
    swapped: list[int] = []

    def swap(row: dict[str, Any]) -> bool | None:
        if row["kind"] == "train" and row["step"] >= 10 and not swapped:
            swapped.append(row["step"])
            np.save(tmp_path / "ids.npy", np.load(tmp_path / "ids.npy")[::-1])
        return False if swapped and row["kind"] == "train" and row["step"] >= 15 else None

    kept = (tmp_path / "ids.npy").read_bytes()
    half = train(job, "swapped", on_row=swap)
    assert swapped
    assert half.state == "preempted"
    losses = dict(zip(straight.metrics()["step"].tolist(), straight.metrics()["loss"].tolist(), strict=True))
    for row in rows(half):
        if row["kind"] == "train":
            assert row["loss"] == losses[row["step"]], "a run reads what was prepared before it began"
    with pytest.raises(PacelineError) as caught:
        train(job, "swapped", resume=True)
    assert caught.value.exit_code == Exit.MISMATCH
    assert "data" in caught.value.message
    (tmp_path / "ids.npy").write_bytes(kept)
    assert_same_bits(train(job, "swapped", resume=True), straight)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "size=6m") as place:
        yield place


@pytest.mark.slow_drill
@pytest.mark.drill(21)
def test_a_disk_that_fills_up_in_a_run_ends_it_with_its_reason_and_its_last_save(
    small_disk: Path, tmp_path: Path, cache: str
) -> None:
    job = write_tiny(tmp_path)
    straight = train(job, "straight")
    plant(job, "sleep", step=1, every_step=True, seconds=0.05)
    there = {"run.root": str(small_disk / "runs")}
    run = small_disk / "runs" / "full"
    (small_disk / "fault.json").write_text((tmp_path / "fault.json").read_text())
    filled: list[int] = []

    def fill(row: dict[str, Any]) -> None:
        if (
            row["kind"] == "train"
            and row["step"] >= 8
            and not filled
            and (run / "checkpoints/latest").exists()
        ):
            filled.append(row["step"])
            with open(small_disk / "ballast", "wb") as ballast:
                try:
                    while ballast.write(b"x" * 4096):
                        ballast.flush()
                except OSError:
                    pass

    with pytest.raises(PacelineError) as caught:
        train(job, "full", set=there, on_row=fill)
    assert filled
    assert caught.value.exit_code == Exit.STORE, caught.value
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    assert checkpoint.verify(found) == []
    (small_disk / "ballast").unlink()
    (small_disk / "fault.json").unlink()
    resumed = train(job, "full", set=there, resume=True)
    assert resumed.state == "done"
    assert_same_bits(resumed, straight)
    assert [p.name for p in (run / "checkpoints").iterdir() if p.name.startswith(".")] == []

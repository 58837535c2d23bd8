"""D49-D54: configuration, leftover variables, clocks, locale and time zone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

import paceline as pl
from paceline.ledger.accounts import read_ranks, split_waits
from paceline.ledger.outcome import Exit, PacelineError
from paceline.recover import checkpoint
from tests.drills.small import Command, assert_same_bits, fired, plant, rows, train, write_tiny


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        pytest.param("learning_rte", 1e-3, "optimizer.lr", marks=pytest.mark.drill(49)),
        pytest.param("optimizer.learning_rte", 1e-3, "optimizer.lr", marks=pytest.mark.drill(49)),
        pytest.param("train.stepz", 5, "train.steps", marks=pytest.mark.drill(49)),
        pytest.param("train.steps", "many", "train.steps", marks=pytest.mark.drill(50)),
        pytest.param("train.steps", -5, "train.steps", marks=pytest.mark.drill(50)),
        pytest.param("optimizer.lr", float("nan"), "optimizer.lr", marks=pytest.mark.drill(50)),
        pytest.param("optimizer.lr", 1e309, "optimizer.lr", marks=pytest.mark.drill(50)),
        pytest.param("optimizer.lr", -1.0, "optimizer.lr", marks=pytest.mark.drill(50)),
    ],
)
def test_a_wrong_key_or_value_is_refused_with_what_was_meant(
    key: str, value: object, told: str, tmp_path: Path
) -> None:
    job = write_tiny(tmp_path)
    with open(job, "a") as file:
        text = job.read_text().splitlines()
        shown = value if not isinstance(value, str) else f'"{value}"'
        file.seek(0)
        file.truncate()
        file.write(
            "\n".join([*(line for line in text if not line.startswith(f"{key} =")), f"{key} = {shown}\n"])
        )
    with pytest.raises(PacelineError) as caught:
        pl.train(job, layout="dp=2")
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.key == key
    assert told in caught.value.use
    assert caught.value.where.partition("tiny.toml:")[2].isdigit()
    assert not (tmp_path / "runs").exists()


@pytest.mark.drill(51)
@pytest.mark.parametrize(
    ("layout", "allowed"),
    [("tp=3", "tp = 1, 2, 4"), ("pp=5", "up to 4 stages"), ("dp=2,tp=3", "tp = 1, 2, 4")],
)
def test_a_layout_that_cannot_be_is_refused_before_launch(
    layout: str, allowed: str, tmp_path: Path, cache: str
) -> None:
    with pytest.raises(PacelineError) as caught:
        pl.train(write_tiny(tmp_path), layout=layout)
    assert caught.value.exit_code == Exit.RULE
    assert allowed in caught.value.allowed
    assert not (tmp_path / "runs").exists()


@pytest.mark.drill(52)
@pytest.mark.parametrize("layout", [pytest.param("single", marks=pytest.mark.slow_drill), "dp=2"])
def test_what_another_launcher_left_behind_is_named_and_nobody_is_waited_for(
    layout: str, tmp_path: Path, cache: str
) -> None:
    job = write_tiny(tmp_path, train__steps="3")
    left = {"RANK": "7", "SLURM_NTASKS": "2"}
    with Command(job, "train", "tiny.toml", "--layout", layout, "--name", "plain", **left) as one:
        code, out, err = one.end(30)
    assert code == 0, err
    for name in left:
        assert name in out + err


@pytest.mark.drill(53)
@pytest.mark.parametrize("ahead_s", [3600.0, pytest.param(-3600.0, marks=pytest.mark.slow_drill)])
def test_a_clock_that_is_wrong_and_jumps_changes_no_duration(
    ahead_s: float, tmp_path: Path, cache: str
) -> None:
    job = write_tiny(tmp_path)
    straight = train(job, "straight")
    for rank in (0, 1):
        plant(job, "clock", rank=rank, step=8, ahead_s=ahead_s, back_s=600.0)
        run = train(job, f"clock-{rank}")
        assert fired(job)
        assert run.state == "done"
        assert_same_bits(run, straight)
        times = [row["time_s"] for row in rows(run) if row["kind"] == "train"]
        assert times == sorted(times)
        assert times[-1] - times[0] < 60
        accounts = split_waits(read_ranks(run.folder))
        for ledger in accounts.ranks:
            for line in ledger.lines:
                assert all(ticks >= 0 for ticks in line.ticks().values())
        folder = run.path / "checkpoints"
        for path in folder.glob("step-*"):  # what a clock says of them is the wrong way round
            number = int(path.name.rpartition("-")[2])
            os.utime(path, (2e9 - 1e3 * number, 2e9 - 1e3 * number))
        (folder / "latest").unlink()
        assert checkpoint.latest(folder) == folder / "step-00000030"


@pytest.mark.drill(54)
@pytest.mark.slow_drill
def test_locale_and_summer_time_change_no_number_and_no_name(tmp_path: Path, cache: str) -> None:
    """The clock of this zone is put forward an hour about when the first steps are done."""
    found = []
    soon = time.gmtime(time.time() + 3)
    day, clock = soon.tm_yday - 1, time.strftime("%H:%M:%S", soon)
    for folder, more in (
        ("plain", {"LC_ALL": "C", "TZ": "UTC0"}),
        (
            "other",
            {
                "LC_ALL": "tr_TR.UTF-8",
                "LANG": "tr_TR.UTF-8",
                "TZ": f"AAA0BBB,{day}/{clock},{day + 1}/{clock}",
            },
        ),
    ):
        job = write_tiny(tmp_path / folder, train__steps="12")
        plant(job, "sleep", step=1, every_step=True, seconds=0.2)
        with Command(job, "train", "tiny.toml", "--layout", "dp=2", "--name", "INDIVIDUAL", **more) as one:
            code, _, err = one.end(60)
        assert code == 0, err
        run = job.parent / "runs" / "INDIVIDUAL"
        found.append(
            (
                sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()),
                [(row["step"], row["loss"], row["grad_norm"]) for row in rows(run) if row["kind"] == "train"],
                json.loads((run / "checkpoints/step-00000012/manifest.json").read_text())["tensors"],
            )
        )
        times = [row["time_s"] for row in rows(run) if row["kind"] == "train"]
        assert times == sorted(times)
        assert times[-1] < 60
    assert found[0] == found[1]

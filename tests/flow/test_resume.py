"""Kill a run at any time and it ends as if nothing had happened (issue: bit-identical at 2 and at 4 ranks)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline as pl
from paceline.recover.whole import read_whole
from tests.flow.corpus import JOB, write_job

STEPS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("resume")
    write_job(where)
    write_job(where, JOB.replace('"fp32"', '"fp64"'), "exact.toml")
    return where


def end_state(run: pl.Run) -> dict[str, torch.Tensor]:
    last = run.path / "checkpoints" / f"step-{STEPS:08d}"
    return read_whole(last, prefix="model/") | read_whole(last, prefix="optimizer/")


def assert_same_bits(found: pl.Run, expected: pl.Run) -> None:
    ours, theirs = end_state(found), end_state(expected)
    assert ours.keys() == theirs.keys()
    different = [name for name in theirs if not torch.equal(ours[name], theirs[name])]
    assert different == []


def rank_pid(run_folder: Path, rank: int) -> int:
    """The pid in the newest header of the rank's ledger."""
    lines = (run_folder / "ledger" / f"rank-{rank:05d}.jsonl").read_text().splitlines()
    headers = [json.loads(line) for line in lines if '"kind":"ledger"' in line]
    return int(headers[-1]["pid"])


def kill_once(runs: Path, name: str, rank: int, at_step: int) -> Any:
    """An ``on_row`` that kills a rank with SIGKILL when the row of ``at_step`` arrives."""
    fired: list[int] = []

    def on_row(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] >= at_step and not fired:
            fired.append(rank_pid(runs / name, rank))
            os.kill(fired[0], signal.SIGKILL)

    on_row.fired = fired  # type: ignore[attr-defined]
    return on_row


@pytest.mark.drill(1)
@pytest.mark.parametrize("layout", ["dp=2", "dp=4", "fsdp=4:zero1", "dp=2,fsdp=2"])
def test_a_killed_rank_changes_no_bit(folder: Path, layout: str) -> None:
    slug = pl.Layout.parse(layout).slug
    straight = pl.train(folder / "job.toml", layout=layout, name=f"straight-{slug}")
    killer = kill_once(folder / "runs", f"killed-{slug}", rank=1, at_step=6)
    killed = pl.train(folder / "job.toml", layout=layout, name=f"killed-{slug}", on_row=killer)

    assert killer.fired, "the fault must have fired"
    restarts = [row for row in killed_events(killed) if row["event"] == "restart"]
    assert len(restarts) == 1
    assert restarts[0]["step"] >= 6, "the row of a step comes when it is finished"
    assert restarts[0]["detail"]["from"].startswith("memory, after step ")
    assert killed.state == "done"
    assert killed.status.attempt == 1
    assert_same_bits(killed, straight)
    losses = dict(zip(killed.metrics()["step"], killed.metrics()["loss"], strict=True))
    expected = dict(zip(straight.metrics()["step"], straight.metrics()["loss"], strict=True))
    assert losses == expected, "one row a step, the newest attempt's"


def test_a_killed_rank_goes_on_from_a_checkpoint_where_no_memory_outlives_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.recover.live.arena.sys.platform", "darwin")
    straight = pl.train(folder / "job.toml", layout="fsdp=3", name="straight-plain")
    killer = kill_once(folder / "runs", "killed-plain", rank=2, at_step=6)
    killed = pl.train(folder / "job.toml", layout="fsdp=3", name="killed-plain", on_row=killer)
    (restart,) = [row for row in killed_events(killed) if row["event"] == "restart"]
    assert restart["step"] in (4, 8)
    assert restart["detail"]["from"] == f"step-{restart['step']:08d}"
    assert_same_bits(killed, straight)


def killed_events(run: pl.Run) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "event"]


def test_stopped_and_resumed_twice_in_one_epoch(folder: Path) -> None:
    """B029, B027: each resume goes on where the last one stopped, in the same order."""
    straight = pl.train(folder / "job.toml", layout="single", name="straight")

    def stop_at(step: int) -> Any:
        return lambda row: False if row["kind"] == "train" and row["step"] >= step else None

    first = pl.train(folder / "job.toml", layout="single", name="twice", on_row=stop_at(2))
    assert first.state == "preempted"
    assert first.exit_code == 50
    second = pl.train(folder / "job.toml", layout="single", name="twice", resume=True, on_row=stop_at(7))
    assert second.path == first.path
    assert second.state == "preempted"
    third = pl.train(folder / "job.toml", name="twice", resume=True)
    assert third.state == "done"
    assert_same_bits(third, straight)
    assert np.array_equal(third.metrics()["lr"], straight.metrics()["lr"]), "the schedule goes on (B023)"


@pytest.mark.drill(35)
@pytest.mark.parametrize(("before", "after"), [("single", "fsdp=2"), ("fsdp=2:zero2", "dp=2")])
def test_another_layout_goes_on_with_the_same_samples(folder: Path, before: str, after: str) -> None:
    straight = pl.train(folder / "exact.toml", layout="single", name=f"exact-{pl.Layout.parse(after).slug}")
    name = f"moved-{pl.Layout.parse(after).slug}"
    half = pl.train(
        folder / "exact.toml", layout=before, name=name,
        on_row=lambda row: False if row["kind"] == "train" and row["step"] >= 5 else None,
    )  # fmt: skip
    assert half.state == "preempted"
    moved = pl.train(folder / "exact.toml", layout=after, name=name, resume=True)
    assert str(moved.layout).startswith(after)
    assert np.array_equal(moved.metrics()["samples"], straight.metrics()["samples"])
    assert np.allclose(moved.metrics()["loss"], straight.metrics()["loss"], rtol=1e-9, atol=0)
    expected = end_state(straight)
    for name, tensor in end_state(moved).items():
        floor = max(float(expected[name].double().norm()), 1e-4)
        assert float((tensor - expected[name]).double().norm()) / floor <= 1e-9, name

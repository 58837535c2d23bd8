"""D40 and its kind: rules that leave a step out, go back, or stop, on all ranks alike."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline as pl
from paceline.job.rules import SIGNALS
from paceline.ledger.outcome import Exit, Failed
from paceline.recover.checkpoint import of_step, open_manifest
from tests.drills.small import (
    STEPS,
    assert_same_bits,
    end_state,
    events,
    fired,
    pids_of,
    plant,
    rows,
    train,
    write_tiny,
)

SPIKE = {
    "control.spike.signal": "loss_ratio",
    "control.spike.above": 3.0,
    "control.spike.action": "skip",
    "control.spike.owner": "whoever reads this",
}
EVERY_STEP = {"checkpoint.every": 1, "checkpoint.keep": STEPS}


def last_loss(run: pl.Run) -> float:
    return float(run.metrics("eval")["loss"][-1])


def losses(run: pl.Run) -> dict[int, dict[str, Any]]:
    """The last row of each step."""
    return {row["step"]: row for row in rows(run) if row["kind"] == "train"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rules")


@pytest.fixture(scope="module")
def straight(home: Path, cache: str) -> pl.Run:
    return pl.train(write_tiny(home), layout="dp=2", name="straight")


@pytest.fixture(scope="module")
def skipped(straight: pl.Run, home: Path, cache: str) -> pl.Run:
    """A spike on rank 1 at step 12, left out."""
    job = write_tiny(home)
    plant(job, "scale", step=12, factor=1000)
    run = train(job, "skipped", set=SPIKE | EVERY_STEP)
    assert fired(job)
    return run


@pytest.mark.drill(40)
def test_a_spike_is_left_out_on_all_ranks_and_counted(straight: pl.Run, skipped: pl.Run) -> None:
    assert skipped.state == "done"
    (event,) = events(skipped, "control")
    assert (event["step"], event["detail"]["control"], event["detail"]["action"]) == (12, "spike", "skip")
    assert event["detail"]["batch"] == "rows 88 to 95 of the run"
    assert event["detail"]["owner"] == "whoever reads this"
    found = losses(skipped)
    assert found[12]["loss_ratio"] > 3
    assert [step for step, row in found.items() if row["skipped"]] == [12]
    before, after = end_state(skipped, 11), end_state(skipped, 12)
    assert [name for name in before if not torch.equal(before[name], after[name])] == [], "nothing changed"
    assert last_loss(skipped) == pytest.approx(last_loss(straight), rel=0.01)
    ours, theirs = end_state(skipped), end_state(straight)
    assert any(not torch.equal(ours[name], theirs[name]) for name in theirs), "one batch less"


@pytest.mark.drill(40)
def test_a_kill_after_a_step_that_was_left_out_changes_no_bit(
    skipped: pl.Run, home: Path, cache: str
) -> None:
    """What is usual, and that the step counts, are in the memory that outlives the ranks."""
    job = write_tiny(home)
    plant(job, "scale", step=12, factor=1000)
    killed: list[int] = []

    def strike(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] >= 12 and not killed:
            killed.append(pids_of(home / "runs" / "killed")[1])
            os.kill(killed[0], signal.SIGKILL)

    run = train(job, "killed", set=SPIKE | EVERY_STEP, on_row=strike)
    assert killed
    assert run.state == "done"
    assert events(run, "restart")[0]["detail"]["from"].startswith("memory")
    assert_same_bits(run, skipped)
    assert [losses(run)[s].get("loss_ratio") for s in (12, 20, 29)] == [
        losses(skipped)[s].get("loss_ratio") for s in (12, 20, 29)
    ]


@pytest.mark.drill(40)
@pytest.mark.parametrize(("layout", "factor"), [("dp=2", "inf"), ("single", "nan")])
def test_a_rule_goes_back_to_the_last_checkpoint_and_leaves_the_batches_out(
    layout: str, factor: str, straight: pl.Run, tmp_path: Path, cache: str
) -> None:
    job = write_tiny(tmp_path)
    plant(job, "scale", rank=0, step=18, factor=factor, saved=15)
    rule = {"control.nonfinite.action": "rollback", "control.nonfinite.owner": "me"}
    run = train(job, "back", layout, set=rule)
    assert fired(job)
    assert run.state == "done"
    assert [e["step"] for e in events(run, "control")] == [18]
    (restart,) = events(run, "restart")
    assert (restart["step"], restart["detail"]["from"]) == (15, "step-00000015")
    assert restart["detail"]["control"] == "nonfinite"
    assert "3 steps" in restart["detail"]["left out"]
    path = of_step(run.path / "checkpoints", STEPS)
    assert path is not None
    assert open_manifest(path).scalars["position"] == (STEPS + 3) * 8
    state = end_state(run)
    assert all(bool(value.isfinite().all()) for value in state.values())
    assert last_loss(run) == pytest.approx(last_loss(straight), rel=0.01)


@pytest.mark.drill(40)
def test_going_back_again_and_again_is_no_progress(home: Path, cache: str) -> None:
    job = write_tiny(home)
    plant(job, "scale", rank=0, step=8, factor="nan", every_step=True, always=True)
    rule = {"control.nonfinite.action": "rollback", "control.nonfinite.owner": "me", "restart.max": 2}
    with pytest.raises(Failed) as caught:
        train(job, "in-vain", "single", set=rule)
    assert caught.value.exit_code == Exit.NONFINITE
    assert "went back 2 times" in caught.value.message
    run = home / "runs" / "in-vain"
    assert len(events(run, "restart")) == 2
    assert all(bool(value.isfinite().all()) for value in end_state(run, 5).values())


@pytest.mark.drill(40)
def test_b084_a_run_that_skips_every_step_is_stopped(home: Path, cache: str) -> None:
    job = write_tiny(home)
    plant(job, "scale", rank=0, step=8, factor="nan", every_step=True)
    rule = {"control.nonfinite.action": "skip", "control.nonfinite.owner": "me"}
    with pytest.raises(Failed) as caught:
        train(job, "all-skipped", "single", set=rule)
    assert caught.value.exit_code == Exit.NONFINITE
    assert "10 steps in a row" in caught.value.seen
    run = home / "runs" / "all-skipped"
    assert sum(row.get("skipped", 0) for row in rows(run)) == 9
    assert all(bool(value.isfinite().all()) for value in end_state(run, 15).values())


@pytest.mark.parametrize(
    ("rule", "saved"),
    [
        ({"signal": "loss", "below": 1e9, "for_steps": 3}, 2),
        ({"signal": "tokens_per_s", "below": 1e12, "for_steps": 3}, None),
    ],
    ids=["before the weights change", "by the finished step's row"],
)
def test_a_rule_stops_the_run_with_its_weights_saved(
    rule: dict[str, Any], saved: int | None, home: Path, cache: str
) -> None:
    job = write_tiny(home)
    sets = {f"control.mine.{key}": value for key, value in rule.items()}
    name = f"stopped-{rule['signal']}"
    stop = {"control.mine.action": "stop", "control.mine.owner": "me"}
    with pytest.raises(Failed) as caught:
        pl.train(job, layout="dp=2", name=name, set=sets | stop)
    assert caught.value.exit_code == Exit.CONTROL
    assert caught.value.key == "control.mine"
    run = pl.Run(home / "runs" / name)
    assert run.state == "failed"
    newest = max(int(p.name.split("-")[1]) for p in (run.path / "checkpoints").glob("step-*"))
    assert newest == saved if saved is not None else 3 <= newest < STEPS
    again = pl.train(run.path, resume=True, set=sets | {"control.mine.action": "alert"})
    assert again.state == "done"


def test_what_rules_watch_is_in_the_rows(straight: pl.Run) -> None:
    """A rule on a name that no row ever has would watch nothing."""
    seen = set().union(*(row.keys() for row in losses(straight).values()))
    elsewhere = {"bubble", "mfu", "aux_loss", "expert_load_max", "cost_usd", "bits_per_byte", "replicas"}
    assert set(SIGNALS) - seen <= elsewhere
    assert math.isfinite(losses(straight)[STEPS - 1]["grad_norm_ratio"])

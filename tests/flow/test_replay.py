"""``paceline replay``: a step again from checkpoint, batch and seeds; it tells a batch's fault from a device's."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import paceline as pl
from paceline.api.replay import replay
from paceline.api.replayed import Replayed, judged, text
from paceline.ledger.outcome import Exit, Failed, Refused
from tests.cli.shell import paceline
from tests.drills.small import plant, train, write_tiny
from tests.flow.conftest import cache as cache


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: str) -> pl.Run:
    """Twelve steps of two replicas, saved every five."""
    home = tmp_path_factory.mktemp("replay")
    return pl.train(write_tiny(home, train__steps="12", checkpoint__keep="9"), layout="dp=2", name="straight")


@pytest.mark.parametrize(
    ("step", "layout", "bits", "source"),
    [
        (9, "run", True, "step-00000005"),
        (5, "run", True, "the beginning"),
        (9, "single", False, "step-00000005"),
        (12, "fsdp=2,mbs=4", False, "step-00000010"),
    ],
)
def test_a_step_comes_out_as_it_was(step: int, layout: str, bits: bool, source: str, run: pl.Run) -> None:
    before = sorted(p.name for p in run.path.rglob("*") if p.is_file() and "evidence" not in p.parts)
    found = replay(run, step=step, layout=layout)
    assert found.reproduced
    assert found.first_difference is None
    assert found.source == source
    recorded = dict(zip(run.metrics()["step"].tolist(), run.metrics()["loss"].tolist(), strict=True))
    assert [one.step for one in found.steps][-1] == step
    assert found.steps[-1].loss == recorded[step]
    assert (found.steps[-1].difference == 0) == bits
    assert found.steps[-1].difference is not None
    assert found.steps[-1].difference < 1e-4
    written = json.loads((run.path / "evidence" / f"replay-{step}.json").read_text())
    assert written["reproduced"] is True
    assert before == sorted(p.name for p in run.path.rglob("*") if p.is_file() and "evidence" not in p.parts)


def test_a_fault_of_a_device_is_not_reproduced_and_one_of_the_batch_is(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path)
    plant(job, "scale", step=9, factor="nan")
    with pytest.raises(Failed):
        train(job, "device")
    found = replay(tmp_path / "runs" / "device", step=9)
    assert not found.reproduced
    assert found.first_difference == 9
    assert math.isnan(found.steps[-1].loss or 0.0)
    assert "not reproduced" in text(found)
    with pytest.raises(Failed):
        pl.train(
            job,
            layout="dp=2",
            name="rate",
            set={"optimizer.lr": 1e30, "optimizer.warmup_steps": 0, "checkpoint.every": 1},
        )
    again = replay(tmp_path / "runs" / "rate")
    assert again.reproduced
    assert "not finite" in again.ended or "nan" in again.ended


def test_a_step_that_is_not_there_is_refused(run: pl.Run) -> None:
    for step in (0, 14, -3):
        with pytest.raises(Refused) as caught:
            replay(run, step=step)
        assert caught.value.exit_code == Exit.USAGE
        assert caught.value.allowed == "1 to 13"


def test_the_command(run: pl.Run, cache: str) -> None:
    done = paceline("replay", str(run.path), "--step", "7", "--layout", "run", PACELINE_CACHE=cache)
    assert done.code == 0, done.err
    assert "same bits" in done.out
    assert "reproduced: step 7" in done.out


def test_rounding_that_grows_is_told_from_a_step_that_is_different() -> None:
    def told(*again: float, layout: str = "single") -> str:
        steps = [
            Replayed.of(n, {"loss": 4.0, "grad_norm": 1.0}, {"loss": loss, "grad_norm": 1.0})
            for n, loss in enumerate(again, 1)
        ]
        return judged("r", len(again), layout, "dp=2", "fp32", "the beginning", steps, "").outcome

    assert told(4.0, 4.0001) == "reproduced"
    assert told(4.0, 4.1, 4.5) == "unclear"
    assert told(4.1, 4.1) == "different", "it parts in the first step"
    assert told(4.0, math.nan) == "different", "rounding does not make a number that is not finite"
    short = [Replayed.of(1, {"loss": 4.0}, {"loss": 4.0}), Replayed.of(2, {"loss": 4.0}, {})]
    cut = judged("r", 2, "dp=2", "dp=2", "fp32", "the beginning", short, "spike at step 2")
    assert cut.outcome == "unclear"
    assert "a rule ended the replay" in text(cut)
    assert told(4.0, 4.0 + 1e-12, layout="dp=2") == "different", "on the same layout every bit counts"

"""The rules that watch a run: what fires, what is remembered, and that the weights are not touched."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import paceline as pl
from paceline.job.tables.control import MOST_RULES, ControlTable
from paceline.ledger.outcome import Exit, Failed
from paceline.recipes.assemble import assemble
from paceline.update.controls import (
    MOST_SKIPPED,
    Rule,
    armed,
    judge,
    kept,
    nothing_remembered,
    restored,
    signals,
)
from paceline.update.every_step import Counts
from tests.flow.conftest import cache as cache
from tests.flow.corpus import write_job
from tests.recipes.parity_cases import CPU
from tests.tiny import ragged_batches, tiny_job, tiny_widths


def judged(rules: tuple[Rule, ...], losses: list[float], norm: float = 2.0) -> list[list[tuple[str, str]]]:
    """For each step's loss, name and action of what fired."""
    memory, told = nothing_remembered(), []
    for loss in losses:
        fired, memory = judge(rules, signals(loss, norm, memory), memory)
        told.append([(verdict.control, verdict.action) for verdict in fired])
    return told


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_stops_without_a_rule_written(bad: float) -> None:
    rules, memory = armed(None), nothing_remembered()
    assert judge(rules, signals(1.0, 2.0, memory), memory)[0] == []
    for loss, norm in ((bad, 1.0), (1.0, bad)):
        (verdict,), _ = judge(rules, signals(loss, norm, memory), memory)
        assert (verdict.control, verdict.action, verdict.ends) == ("nonfinite", "stop", True)


def test_a_rule_that_only_alerts_does_not_disarm_the_one_that_stops() -> None:
    rules = armed({"nonfinite": ControlTable(action="alert")})
    assert judged(rules, [math.nan]) == [[("nonfinite", "stop"), ("nonfinite", "alert")]]
    skipping = armed({"mine": ControlTable(signal="nonfinite", action="skip", owner="me")})
    assert judged(skipping, [math.nan, 1.0]) == [[("mine", "skip")], []]


def test_a_spike_is_measured_against_what_is_usual_and_does_not_become_usual() -> None:
    rules = armed({"spike": ControlTable(signal="loss_ratio", above=3.0, action="skip", owner="me")})
    early = judged(rules, [4.0, 400.0])
    assert early == [[], []], "after one step nothing is usual"
    told = judged(rules, [4.0] * 8 + [400.0, 4.0, 13.0, 11.0])
    assert told == [[]] * 8 + [[("spike", "skip")], [], [("spike", "skip")], []]


def test_usual_is_the_mean_of_about_the_last_sixteen_steps() -> None:
    memory = nothing_remembered()
    for loss in [8.0] * 100 + [2.0] * 100:
        _, memory = judge((), signals(loss, 1.0, memory), memory)
    assert signals(6.0, 1.0, memory)["loss_ratio"] == pytest.approx(3.0, rel=0.01)
    assert signals(6.0, 5.0, memory)["grad_norm_ratio"] == pytest.approx(5.0)


def test_steps_in_a_row_are_counted_and_an_alert_is_told_when_it_begins() -> None:
    alert = armed({"high": ControlTable(signal="loss", above=3.0, for_steps=2)})
    assert judged(alert, [4, 4, 4, 2, 4, 4]) == [[], [("high", "alert")], [], [], [], [("high", "alert")]]
    stop = armed({"high": ControlTable(signal="loss", above=3.0, for_steps=2, action="stop", owner="me")})
    assert judged(stop, [4, 2, 4, 4, 4])[-2:] == [[("high", "stop")]] * 2, "what acts acts while it holds"


def test_a_run_that_only_leaves_steps_out_is_stopped() -> None:
    rules = armed({"nonfinite": ControlTable(action="skip", owner="me")})
    told = judged(rules, [math.nan] * MOST_SKIPPED)
    assert told == [[("nonfinite", "skip")]] * (MOST_SKIPPED - 1) + [[("nonfinite", "stop")]]
    assert judged(rules, ([math.nan] * (MOST_SKIPPED - 1) + [1.0]) * 2)[-2] == [("nonfinite", "skip")]


def test_the_most_severe_rule_decides() -> None:
    tables = {
        name: ControlTable(signal="loss", above=1.0, action=name, owner="me")
        for name in ("alert", "skip", "stop", "rollback")
    }
    (told,) = judged(armed(tables), [2.0])
    assert [name for name, _ in told] == ["stop", "rollback", "skip", "alert"]


def test_what_is_remembered_goes_through_a_checkpoint_and_forgets_changed_rules() -> None:
    rules = armed({"high": ControlTable(signal="loss", above=3.0, for_steps=3)})
    memory = nothing_remembered()
    for _ in range(2):
        _, memory = judge(rules, signals(4.0, 1.0, memory), memory)
    scalars = json.loads(json.dumps(kept(memory, rules)))
    assert restored(scalars, rules) == memory
    other = restored(scalars, armed({"new": ControlTable(signal="loss", above=1.0)}))
    assert other[:3] == memory[:3]
    assert not any(other[4:])
    assert restored({}, rules) == nothing_remembered(), "a checkpoint of before there were rules"


def test_as_many_rules_as_may_be_are_all_counted() -> None:
    tables = {f"r{n}": ControlTable(signal="loss", above=1.0, for_steps=n + 2) for n in range(MOST_RULES)}
    told = judged(armed(tables), [2.0] * (MOST_RULES + 1))
    assert told == [[], *([(f"r{n}", "alert")] for n in range(MOST_RULES))]


def test_weights_are_untouched_by_a_step_that_is_not_finite() -> None:
    from paceline.deliver.mesh import build_mesh
    from paceline.ledger.spans import Ledger
    from paceline.plan.layout import Layout

    job = tiny_job()
    mesh = build_mesh(Layout.parse("single"), 0, None)
    built = assemble(job, tiny_widths(), "fp32", mesh, CPU)
    policy = built.policy(job, mesh, CPU, Ledger(None))
    with torch.no_grad():
        built.parameters[-1][0] = float("nan")
    before = [p.detach().clone() for p in built.parameters]
    (batch,) = ragged_batches(1, documents=False)
    result = policy.step([batch], Counts(50.0, 0.0, 8.0), 1e-3)
    assert result.verdict is not None
    assert all(
        torch.equal(p, q) or bool(q.isnan().any()) for p, q in zip(built.parameters, before, strict=True)
    )
    assert built.optimizer.state == {}


def test_a_run_that_diverges_ends_with_41_and_keeps_its_checkpoint(tmp_path: Path, cache: str) -> None:
    job = write_job(tmp_path)
    with pytest.raises(Failed) as caught:
        pl.train(
            job,
            layout="single",
            set={"optimizer.lr": 1e30, "optimizer.warmup_steps": 0, "checkpoint.every": 1},
        )
    assert caught.value.exit_code == Exit.NONFINITE
    status = json.loads((tmp_path / "runs/job/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 41)

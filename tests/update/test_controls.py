"""The armed rule: a number that is not finite ends the run before the weights are touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import paceline as pl
from paceline.ledger.outcome import Exit, Failed
from paceline.recipes.assemble import assemble
from paceline.update.controls import judge
from paceline.update.every_step import Counts
from tests.flow.conftest import cache as cache
from tests.flow.corpus import write_job
from tests.recipes.parity_cases import CPU
from tests.tiny import ragged_batches, tiny_job, tiny_widths


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_judge(bad: float) -> None:
    assert judge(1.0, 2.0) is None
    for loss, norm in ((bad, 1.0), (1.0, bad)):
        verdict = judge(loss, norm)
        assert verdict is not None
        assert (verdict.control, verdict.action) == ("nonfinite", "stop")


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

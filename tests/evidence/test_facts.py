"""Facts of a run: distributions, baselines and what stands in for missing files."""

from __future__ import annotations

import math
from pathlib import Path

from paceline.evidence.facts import Facts, finite, flatten, is_number, quantile
from paceline.ledger.folder import create
from paceline.ledger.metrics import MetricsWriter
from tests.evidence.synthetic_run import Story, write_run


def test_step_times_are_a_distribution_with_the_warm_up_apart(tmp_path: Path) -> None:
    folder = create(tmp_path, "r")
    writer = MetricsWriter(folder.metrics)
    for step, seconds in enumerate([9.0, 5.0, 2.0] + [1.0] * 18 + [3.0, 4.0], start=1):
        writer.write({"kind": "train", "step": step, "attempt": 0, "time_s": 0.0, "step_time_s": seconds})
    times = Facts(folder).step_times
    assert times is not None
    assert (times.count, times.p50, times.p95, times.worst, times.first) == (20, 1.0, 3.0, 4.0, 9.0)


def test_a_run_of_two_steps_has_times_too(tmp_path: Path) -> None:
    folder = create(tmp_path, "r")
    writer = MetricsWriter(folder.metrics)
    writer.write({"kind": "train", "step": 1, "attempt": 0, "time_s": 0.0, "step_time_s": 2.0})
    times = Facts(folder).step_times
    assert times is not None
    assert times.p50 == 2.0


def test_a_run_without_files_has_no_facts_and_raises_nothing(tmp_path: Path) -> None:
    facts = Facts(create(tmp_path, "r"))
    assert (facts.state, facts.manifest, facts.job, facts.plan, facts.evals) == ("unknown", {}, {}, {}, [])
    assert (facts.step_times, facts.last_eval, facts.ranks, facts.wall_s, facts.restarts) == (
        None,
        None,
        [],
        0,
        [],
    )
    assert (facts.baselines, facts.checkpoints, facts.latest_checkpoint) == ({}, [], "")


def test_facts_of_a_whole_run(tmp_path: Path) -> None:
    facts = Facts(write_run(tmp_path, Story(ranks=2, steps=100)))
    assert facts.state == "done"
    assert facts.devices == 2
    assert facts.layout == "fsdp=2"
    assert facts.job_keys["train.steps"] == 100
    assert facts.baselines["unigram"]["bits_per_byte"] == 2.67
    assert [step for step, _, _ in facts.checkpoints] == [100]
    assert facts.latest_checkpoint == "step-00000100"
    assert (facts.last_eval or {})["step"] == 100
    assert sum(r["share"] for r in facts.time_rows) == 1.0 or math.isclose(
        sum(r["share"] for r in facts.time_rows), 1
    )


def test_small_helpers() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a.b": 1, "a.c.d": 2, "e": 3}
    assert finite([1, None, "x", math.nan, True, 2.5]) == [1.0, 2.5]
    assert not is_number(True)
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.0) == 1.0

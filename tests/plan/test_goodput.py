"""What saving and failing cost a run, by hand and in a plan."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from paceline.job import Job
from paceline.plan.cluster import parse_cluster
from paceline.plan.goodput import DETECT_S, DEVICE_MTBF_S, HOST_STORE_BYTES_PER_S, START_S, Failures
from paceline.plan.search import plan

JOB = {
    "model.preset": "llama-3.1-70b",
    "data.train": "python-stdlib",
    "data.sequence_length": 8192,
    "train.global_batch_size": 1024,
    "train.steps": 20_000,
}


def simulated(failures: Failures, world: int, step_s: float, steps: int, seed: int) -> float:
    """Time over the time of the steps of a run whose devices fail at random; saves by the clock, failures anywhere."""
    draw = random.Random(seed)
    assert failures.every_s is not None
    assert failures.device_mtbf_s is not None
    mtbf, save_s, restart_s = (
        failures.device_mtbf_s / world,
        failures.save_s(world),
        failures.restart_s(world),
    )
    each = max(1, round(failures.every_s / step_s))
    now, done, saved = 0.0, 0, 0
    fails = draw.expovariate(1 / mtbf)
    while done < steps:
        now += step_s
        done += 1
        if done - saved == each:
            now += save_s
            saved = done
        if now >= fails:
            done, now = saved, now + restart_s
            fails = now + draw.expovariate(1 / mtbf)
    return now / (steps * step_s)


def test_the_formula_is_what_random_failures_do() -> None:
    failures = Failures(2e6, per_host=8, checkpoint_bytes=2e12, every_s=600.0)
    world = 1024
    runs = [simulated(failures, world, 5.0, 20_000, seed) for seed in range(12)]
    assert failures.overhead(world, 5.0) == pytest.approx(sum(runs) / len(runs), rel=0.03)
    assert failures.overhead(world, 5.0) > 1.25


def test_by_hand() -> None:
    failures = Failures(1000 * 3600.0, per_host=8, checkpoint_bytes=16e9, every_s=900.0)
    save_s = 16e9 / 2 / HOST_STORE_BYTES_PER_S
    assert failures.save_s(16) == save_s
    lost = (450 + DETECT_S + START_S + save_s) / (1000 * 3600 / 16)
    assert failures.overhead(16, 3.0) == pytest.approx(1 + save_s / 900 + lost, rel=1e-4)
    assert replace(failures, device_mtbf_s=None).overhead(16, 3.0) == pytest.approx(1 + save_s / 900)
    by_steps = replace(failures, every_s=None, every_steps=300.0)
    assert by_steps.overhead(16, 3.0) == pytest.approx(failures.overhead(16, 3.0))


def test_a_column_of_layouts_is_its_layouts_one_by_one() -> None:
    """Whatever the saves are counted in: a large search asks about many layouts at once."""
    worlds, steps = np.array([1, 8, 64, 4096]), np.array([9.0, 3.0, 0.5, 0.2])
    by_clock = Failures(DEVICE_MTBF_S, per_host=8, checkpoint_bytes=1e11, every_s=900.0)
    for failures in (
        by_clock,
        replace(by_clock, every_s=None, every_steps=50.0),
        replace(by_clock, device_mtbf_s=None),
        replace(by_clock, every_s=None),
    ):
        together = np.broadcast_to(failures.overhead(worlds, steps), len(worlds))
        alone = [failures.overhead(int(w), float(s)) for w, s in zip(worlds, steps, strict=True)]
        assert list(together) == pytest.approx(alone)


def test_a_large_search_with_saves_by_share_of_the_run() -> None:
    keys = JOB | {"checkpoint.every": "25%", "model.preset": "llama-3.1-8b"}
    cluster = parse_cluster("2x8xH100-SXM-80GB")
    assert plan(Job().replace(keys), cluster=cluster, measured=None).best.goodput < 1


def test_no_other_interval_is_better_than_the_best() -> None:
    failures = Failures(DEVICE_MTBF_S, per_host=8, checkpoint_bytes=5e12, every_s=900.0)
    best = failures.best_interval_s(8192)
    assert best is not None
    least = replace(failures, every_s=best).overhead(8192, 5.0)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert replace(failures, every_s=best * factor).overhead(8192, 5.0) > least


def test_a_plan_counts_it_in_hours_and_money() -> None:
    layout = "dp=8,fsdp=128,mbs=1,recompute=full"  # whatever a search would choose: this is about hours
    cluster = parse_cluster("128x8xH100-SXM-80GB")
    found = plan(Job().replace(JOB), cluster=cluster, measured=None, layout=layout).best
    assert found.hours is not None
    assert found.usd is not None
    of_steps = found.step_s[1] * 20_000 / 3600
    assert found.hours[1] == pytest.approx(of_steps / found.goodput)
    assert 0.9 < found.goodput < 0.999
    often = Job().replace(JOB | {"cluster.device_mtbf": "2000h"})
    worse = plan(often, cluster=cluster, measured=None, layout=layout)
    assert worse.best.goodput < found.goodput - 0.05
    [told] = [text for text in worse.assumed if text.startswith("goodput")]
    assert "once in 2 000 h" in told
    assert "checkpoint.every" in told


def test_more_devices_that_fail_often_lose_to_fewer() -> None:
    """With saves twice an hour and devices that fail every 50 hours, 512 of them do not come forward."""
    keys = JOB | {"model.preset": "llama-3.1-8b", "checkpoint.every": "30min", "cluster.device_mtbf": "50h"}
    found = plan(Job().replace(keys), cluster=parse_cluster("64x8xH100-SXM-80GB"), measured=None)
    assert found.best.layout.world_size < 512
    sound = plan(
        Job().replace(keys | {"cluster.device_mtbf": "500000h"}),
        cluster=parse_cluster("64x8xH100-SXM-80GB"),
        measured=None,
    )
    assert sound.best.layout.world_size == 512


def test_a_small_job_here_needs_no_words() -> None:
    small = Job().replace({"data.train": "python-stdlib", "model.preset": "tiny", "train.steps": 100})
    found = plan(small, cluster=parse_cluster("2xCPU"), measured=None)
    assert found.best.goodput > 0.99
    assert not any("goodput" in text for text in found.assumed)
    assert math.isclose(Failures(None, 1, 0.0, None).overhead(4, 1.0), 1.0)

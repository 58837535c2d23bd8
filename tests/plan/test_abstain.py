"""The planner says that it does not know where it does not, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.cluster import parse_cluster
from tests.plan.answers import LLAMA, ask, job, measurement

GPT2 = LLAMA | {"model.preset": "gpt2", "data.sequence_length": 256, "train.global_batch_size": 64}


def refused(*arguments: object, **named: object) -> Refused:
    with pytest.raises(Refused) as caught:
        ask(*arguments, **named)  # type: ignore[arg-type]
    return caught.value


def test_a_deadline_inside_a_hopeless_interval_is_not_known() -> None:
    low, mid, high = ask(measured=None).best.hours or (0.0, 0.0, 0.0)
    assert high / low > 5
    error = refused(job(layout__deadline=f"{mid * 3600 * 1.3:.0f}s"), measured=None)
    assert error.exit_code == Exit.ABSTAIN
    assert "whether the deadline can be met is not known" in error.message
    assert "% likely to be inside it" in error.seen
    assert error.use == "paceline cluster measure"


def test_a_deadline_below_or_above_the_whole_interval_is_known() -> None:
    low, _, high = ask(measured=None).best.hours or (0.0, 0.0, 0.0)
    assert refused(job(layout__deadline=f"{low * 3600 / 3:.0f}s"), measured=None).exit_code == Exit.DEADLINE
    assert ask(job(layout__deadline=f"{high * 3600 * 1.1:.0f}s"), measured=None).best.hours


def test_a_measured_machine_refuses_at_the_upper_end_and_says_how_likely() -> None:
    _, mid, _ = ask().best.hours or (0.0, 0.0, 0.0)
    error = refused(job(layout__deadline=f"{mid * 3600:.0f}s"))
    assert error.exit_code == Exit.DEADLINE
    likely = int(error.seen.partition("; ")[2].partition(" %")[0])
    assert 40 <= likely <= 75


def test_a_busy_measurement_asks_for_a_quiet_one() -> None:
    busy = replace(measurement(), cpu_share=0.3)
    _, mid, _ = ask(measured=busy).best.hours or (0.0, 0.0, 0.0)
    error = refused(job(layout__deadline=f"{mid * 3600 * 1.2:.0f}s"), measured=busy)
    assert error.exit_code == Exit.ABSTAIN
    assert error.use == "paceline cluster measure, while nothing else runs here"


def test_a_device_without_a_rate_is_not_priced() -> None:
    cluster = parse_cluster("8xH100-SXM-80GB")
    silent = replace(cluster, accelerator=replace(cluster.accelerator, peak_flops={}, matmul_flops={}))
    error = refused(job(LLAMA), silent)
    assert error.exit_code == Exit.ABSTAIN
    assert "neither a bf16 nor an fp16 peak" in error.seen


def test_a_link_that_nobody_stated_and_that_the_scope_hangs_on() -> None:
    error = refused(job(GPT2), "1x4xTPU-v3")
    assert error.exit_code == Exit.ABSTAIN
    assert "one device or one host" in error.message
    assert error.key == "cluster.link.intra"
    assert error.use == "--set cluster.link.intra=8Gbit"
    stated = {rate: job(GPT2 | {"cluster.link": {"intra": rate}}) for rate in ("0.8Gbit", "8Gbit", "320Gbit")}
    found = {rate: ask(one, "1x4xTPU-v3").best.scope for rate, one in stated.items()}
    assert (found["0.8Gbit"], found["320Gbit"]) == ("device", "host")


def test_a_scope_that_does_not_hang_on_the_unknown_link_is_answered() -> None:
    assert ask(job(LLAMA | {"model.preset": "llama-3.2-1b"}), "2x4xL4").best.scope == "cluster"
    assert ask(job(GPT2), "1x4xTPU-v3", layout="dp=4").best.layout.dp == 4

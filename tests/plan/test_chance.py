"""Intervals and comparisons: what two layouts share cancels."""

from __future__ import annotations

import pytest

from paceline.plan import chance

SIGMA = {"compute": 0.5, "deliver": 0.5, "update": 0.5, "host": 0.5, "idle": 0.5, "own": 0.05}


def parts(compute: float, deliver: float = 0.0) -> dict[str, float]:
    return {"compute": compute, "deliver": deliver, "update": 0.0, "host": 0.0, "idle": 0.0}


def test_equals_are_even_and_order_is_symmetric() -> None:
    assert chance.faster(parts(1), parts(1), SIGMA) == pytest.approx(0.5)
    p = chance.faster(parts(1), parts(1.1), SIGMA)
    assert p > 0.5
    assert chance.faster(parts(1.1), parts(1), SIGMA) == pytest.approx(1 - p)


def test_a_shared_error_cancels_and_another_mix_does_not() -> None:
    same = chance.faster(parts(1.0), parts(1.2), SIGMA)
    other = chance.faster(parts(1.0), parts(0.4, 0.8), SIGMA)
    assert same > 0.98
    assert other < 0.8


def test_the_interval_is_90_percent_of_a_log_normal() -> None:
    low, mid, high = chance.interval(2.0, 0.1)
    assert mid == 2.0
    assert high / mid == pytest.approx(mid / low)
    assert chance.exceeds(2.0, high, 0.1) == pytest.approx(0.05, abs=1e-3)
    assert chance.sigma(parts(1.0), SIGMA) == pytest.approx((0.25 + 0.0025) ** 0.5)


def test_the_chance_to_run_out_of_memory() -> None:
    assert chance.exceeds(10, 10, 0.1) == pytest.approx(0.5)
    assert chance.exceeds(5, 10, 0.1) < 1e-6
    assert chance.exceeds(5, 0, 0.1) == 1.0

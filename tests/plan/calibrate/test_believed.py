"""Rates of our own runtime: learnt from others' runs, and unsure of what programs differ in."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline.plan.calibrate.believed import PARTS, believed
from paceline.plan.calibrate.covariance import Scales
from paceline.plan.calibrate.packaged import packaged_examples, rates_for
from paceline.plan.speed.rates import AS_PUBLISHED, NAMES

COLUMN = NAMES.index("matmul")


def test_runs_that_are_longer_by_their_products_teach_slower_products() -> None:
    """Every run takes its share of 20 % more in products: most of it is believed of them, and of nothing else."""
    shift = math.log(1.2)
    taught = [
        replace(one, measured=one.predicted + shift * one.shares[COLUMN]) for one in packaged_examples()
    ]
    found = believed(taught, "", "bf16", Scales()).rates
    assert 0.6 * shift < found.matmul < 1.05 * shift
    others = [
        value for name, value in zip(NAMES, found.values(), strict=True) if name not in ("matmul", "narrow")
    ]
    assert max(map(abs, others)) < 0.1


def test_nothing_measured_is_the_closed_form() -> None:
    flat = [replace(one, measured=one.predicted) for one in packaged_examples()[:50]]
    assert believed(flat, "H100-SXM-80GB", "bf16", Scales()).rates.values() == pytest.approx(
        AS_PUBLISHED.values()
    )


def test_an_accelerator_with_runs_is_surer_than_one_without() -> None:
    known, unknown = (rates_for(name, "bf16").sigma for name in ("H100-SXM-80GB", "Unheard-Of"))
    assert set(known) == {*PARTS, "shared", "own"}
    assert known["compute"] <= unknown["compute"]
    assert all(0 < value < 1.5 for value in known.values())


def test_the_packaged_rates_are_those_of_the_packaged_examples() -> None:
    now = believed(packaged_examples(), "A100-SXM-80GB", "bf16", Scales())
    kept = rates_for("A100-SXM-80GB", "bf16")
    assert kept.rates.values() == pytest.approx(now.rates.values(), abs=1e-3)
    assert kept.sigma == pytest.approx(now.sigma, abs=2e-3)

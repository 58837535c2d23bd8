"""The learning rate by step, against the curves written out."""

from __future__ import annotations

import math

import pytest

from paceline.update.schedule import Schedule, as_steps


def rates(kind: str, **changes: float) -> list[float]:
    base = {"peak": 1.0, "steps": 100, "warmup_steps": 10, "decay_steps": 20, "min_ratio": 0.1}
    schedule = Schedule(kind=kind, **{**base, **changes})  # type: ignore[arg-type]
    return [schedule.rate(step) for step in range(1, 121)]


@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd", "constant"])
def test_warm_up_is_linear_and_ends_at_the_peak(kind: str) -> None:
    found = rates(kind)
    assert found[:10] == pytest.approx([0.1 * k for k in range(1, 11)])
    assert max(found) == pytest.approx(1.0)


def test_curves() -> None:
    assert rates("cosine")[54] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 45 / 90)))
    assert rates("linear")[54] == pytest.approx(0.1 + 0.9 * 0.5)
    assert rates("wsd")[79] == pytest.approx(1.0)
    assert rates("wsd")[89] == pytest.approx(0.1 + 0.9 * 0.5)
    assert rates("constant")[99] == pytest.approx(1.0)
    for kind in ("cosine", "linear", "wsd"):
        assert rates(kind)[99] == pytest.approx(0.1), "the last step has the last rate"
        assert rates(kind)[119] == pytest.approx(0.1), "and it holds past the end"


def test_a_run_shorter_than_its_warm_up_and_one_without() -> None:
    assert rates("cosine", steps=5)[4] == pytest.approx(0.5)
    assert rates("cosine", warmup_steps=0)[0] == pytest.approx(1.0, abs=1e-3)


def test_fractions_are_of_the_run() -> None:
    assert (as_steps(0.02, 200), as_steps(5, 200), as_steps(0, 200), as_steps(0.5, 3)) == (4, 5, 0, 2)

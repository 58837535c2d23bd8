"""When evaluations and checkpoints are due: by the step on every rank, by the clock on rank 0 alone."""

from __future__ import annotations

import pytest

from paceline.job.interval import parse_interval
from paceline.update.due import Due


def due_steps(every: object, steps: int = 100, per_epoch: float = 7.5) -> list[int]:
    due = Due(parse_interval(every), steps, per_epoch, lambda: 0.0)
    return [step for step in range(1, steps + 1) if due.by_step(step)]


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (25, [25, 50, 75, 100]),
        ("10%", list(range(10, 101, 10))),
        ("never", []),
        ("5min", []),
        (1, list(range(1, 101))),
    ],
)
def test_by_step(every: object, expected: list[int]) -> None:
    assert due_steps(every) == expected


def test_epochs_of_a_fractional_number_of_steps() -> None:
    found = due_steps("1 epoch", steps=30)
    assert len(found) == 4
    assert all(abs(step - 7.5 * k) <= 0.5 for k, step in enumerate(found, start=1))


def test_a_share_of_a_short_run_is_at_least_a_step() -> None:
    assert due_steps("10%", steps=3) == [1, 2, 3]


def test_by_clock_starts_again_when_it_happened() -> None:
    now = [0.0]
    due = Due(parse_interval("5min"), 100, 10.0, lambda: now[0])
    assert not due.by_clock()
    now[0] = 300.0
    assert due.by_clock()
    due.happened()
    assert not due.by_clock()


@pytest.mark.parametrize("every", [1, 4, 7, "25%", "1 epoch", "never"])
def test_since_is_by_step_of_any_step_between(every: object) -> None:
    due = Due(parse_interval(every), 100, 7.5, lambda: 0.0)
    for before in range(0, 30, 3):
        for step in range(before, 40):
            assert due.since(before, step) == any(due.by_step(s) for s in range(before + 1, step + 1))


def test_since_by_a_clock_that_was_lost_is_now() -> None:
    due = Due(parse_interval("5min"), 100, 10.0, lambda: 0.0)
    assert due.since(3, 4)
    assert not due.since(4, 4)

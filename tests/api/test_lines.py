"""Plain lines: which rows are due, and that each is exactly the form of interface §10."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from paceline.api.lines import PlainLines, Progress, clock_text

STAMP = "2026-11-30T12:04:31Z"


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(clock: Clock, every: tuple[str, float] = ("seconds", 10.0), steps: int = 200) -> PlainLines:
    return PlainLines(
        steps=steps, every=every, clock=clock, now=lambda: datetime(2026, 11, 30, 12, 4, 31, tzinfo=UTC)
    )


def row(step: int, **more: object) -> dict[str, object]:
    return {
        "kind": "train",
        "step": step,
        "attempt": 0,
        "time_s": 1.0,
        "loss": 5.214,
        "step_time_s": 0.41,
        **more,
    }


def test_a_train_line_is_that_of_the_interface() -> None:
    full = row(
        120, grad_norm=0.83, lr=2.4e-4, tokens_per_s=19980.2, mfu=0.24, memory_gib=1.2,
        exposed_communication=0.0, bubble=0.1,
    )  # fmt: skip
    assert lines(Clock()).line(full) == (
        f"{STAMP} train step=120/200 loss=5.2140 grad_norm=0.83 lr=2.40e-04 tokens_per_s=19980 mfu=0.240 "
        "memory_gib=1.2 exposed_communication=0.00 eta=0:33"
    )


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ({"kind": "say", "field": "warn", "text": "n0417:96| slow"}, "warn  n0417:96| slow"),
        (
            {
                "kind": "eval",
                "step": 100,
                "attempt": 0,
                "time_s": 1.0,
                "set": "held-out",
                "loss": 5.402,
                "tokens": 99.0,
            },
            "eval  step=100 set=held-out loss=5.4020 tokens=99",
        ),
        (
            {
                "kind": "event",
                "step": 7,
                "event": "restart",
                "detail": {"cause": "rank 1 died", "from": "step-00000004"},
            },
            'event step=7 event=restart cause="rank 1 died" from=step-00000004',
        ),
        ({"kind": "preparing", "stage": "read", "done_bytes": 45, "total_bytes": 100}, "data  read 45 %"),
    ],
)
def test_other_lines(message: dict[str, object], line: str) -> None:
    assert lines(Clock()).line(message) == f"{STAMP} {line}"


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (("seconds", 10.0), [1, 10, 19]),
        (("steps", 4), [1, 4, 8, 12, 16]),
        (("fraction", 0.05), [1, 10]),
        (("epochs", 1.0), [1, 10]),
        (("never", 0), [1]),
    ],
)
def test_when_a_line_is_due(every: tuple[str, float], expected: list[int]) -> None:
    clock = Clock()
    plain = lines(clock, every)
    shown = []
    for step in range(1, 20):
        clock.now = step * 1.2
        if plain.line(row(step, epoch=step / 10)) is not None:
            shown.append(step)
    assert shown == expected


def test_the_last_step_is_always_shown_and_the_first_of_all() -> None:
    plain = lines(Clock(), ("never", 0), steps=3)
    assert [plain.line(row(step)) is not None for step in (1, 2, 3)] == [True, False, True]


def test_a_stage_of_the_preparation_is_said_once_and_every_ten_seconds() -> None:
    clock = Clock()
    plain = lines(clock)
    said = []
    for second in range(25):
        clock.now = float(second)
        said.append(plain.line({"kind": "preparing", "stage": "tokenise" if second else "read"}) is not None)
    assert [n for n, shown in enumerate(said) if shown] == [0, 1, 11, 21]


def test_the_time_left_is_the_steps_left_times_the_median_step() -> None:
    progress = Progress(10)
    assert progress.left_s is None
    for step, seconds in enumerate((9.0, 1.0, 1.0), start=1):
        progress.take(row(step, step_time_s=seconds))
    assert progress.left_s == 7.0


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (33.4, "0:33"), (84, "1:24"), (7509, "2:05:09")])
def test_clock(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text

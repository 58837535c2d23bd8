"""How a run ended, in one line, for every state."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.evidence import verdict
from paceline.evidence.facts import Facts
from paceline.ledger.folder import Status, create
from tests.evidence.synthetic_run import Story, write_run


@pytest.mark.parametrize(
    ("status", "tone", "words"),
    [
        (Status("done", 9, 9), "good", "done: 9 of 9 steps"),
        (Status("preempted", 5, 9, exit_code=50), "warn", "stopped and saved: 5 of 9 steps"),
        (Status("failed", 5, 9, exit_code=31), "bad", "failed after 5 of 9 steps: collective hung"),
        (Status("failed", 5, 9, message="rank 1 died"), "bad", "rank 1 died"),
        (Status("running", 5, 9), "warn", "running: 5 of 9 steps"),
        (None, "bad", "no status file"),
    ],
)
def test_each_state_has_its_tone(tmp_path: Path, status: Status | None, tone: str, words: str) -> None:
    folder = create(tmp_path, "r")
    if status is not None:
        status.write(folder.status)
    judged = verdict.ending(Facts(folder))
    assert judged.tone == tone
    assert words in judged.text
    assert judged.sign in "✓!✗"


def test_the_prediction_is_judged_by_its_interval(tmp_path: Path) -> None:
    facts = Facts(write_run(tmp_path, Story(steps=40, step_s=0.4)))
    inside, slower = (verdict.prediction(facts, bounds) for bounds in ([0.3, 0.4, 0.5], [0.1, 0.2, 0.3]))
    assert inside is not None
    assert slower is not None
    assert (inside.tone, slower.tone) == ("good", "warn")
    assert "2.0" in slower.text
    assert "slower than planned" in slower.text
    assert verdict.prediction(facts, []) is None


def test_too_much_unattributed_time_is_said(tmp_path: Path) -> None:
    judged = verdict.unattributed(Facts(write_run(tmp_path, Story(steps=20))))
    assert judged is not None
    assert judged.tone == "good"
    assert verdict.unattributed(Facts(create(tmp_path, "bare"))) is None

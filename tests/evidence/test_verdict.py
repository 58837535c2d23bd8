"""How a run ended, in one line, for every state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.evidence import verdict
from paceline.evidence.facts import Facts
from paceline.evidence.sections.head import head
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


def resumed(root: Path, layouts: dict[str, str]) -> Facts:
    """Attempt 0 to step 30 (and 7 steps more, lost), attempt 1 to step 40."""
    folder = write_run(root, Story(ranks=2, steps=40, resumed_at=30))
    status = json.loads(folder.status.read_text())
    folder.status.write_text(json.dumps({**status, "layouts": layouts}))
    return Facts(folder)


def test_a_run_of_one_attempt_says_nothing_of_attempts(tmp_path: Path) -> None:
    facts = Facts(write_run(tmp_path, Story(steps=40)))
    assert (verdict.history(facts), verdict.last_steps(facts)) == ("", "")
    assert "attempt" not in verdict.summary(facts) + verdict.ending(facts).text + str(head(facts))


def test_each_figure_of_a_resumed_run_names_the_attempts_that_it_is_of(tmp_path: Path) -> None:
    facts = resumed(tmp_path, {"0": "dp=2", "1": "fsdp=2"})
    assert verdict.history(facts) == "30 steps on dp=2, then 10 on fsdp=2"
    told = verdict.summary(facts)
    assert "30 steps on dp=2, then 10 on fsdp=2" in told
    assert "As fsdp=2 on 2 devices, in its last 10 steps, it took in" in told
    assert "of the device time of both attempts" in told
    assert verdict.ending(facts).text.endswith("over 2 attempts")
    page = str(head(facts))
    assert page.count("median of the last 10 steps") == 2
    assert "both attempts" in page


def test_attempts_of_one_layout_are_one_stretch_and_an_unknown_layout_is_said(tmp_path: Path) -> None:
    same = resumed(tmp_path / "same", {"0": "fsdp=2", "1": "fsdp=2"})
    assert verdict.history(same) == "40 steps on fsdp=2 (2 attempts)"
    unknown = resumed(tmp_path / "unknown", {})
    assert verdict.history(unknown) == "30 steps on a layout that nobody noted, then 10 on fsdp=2"


def test_devices_are_those_of_the_newest_attempt(tmp_path: Path) -> None:
    folder = write_run(tmp_path, Story(ranks=2, steps=40, resumed_at=30))
    other = folder.ledger(1)
    text = other.read_text()
    other.write_text(text[: text.index('"attempt":1')].rpartition("\n")[0] + "\n")
    assert Facts(folder).devices == 1

"""Where a planned job may be written, and what is said where it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.ledger.outcome import Failed, Refused
from paceline.plan.answer import refuse_place
from tests.plan.answers import ask, job


@pytest.mark.parametrize(
    ("place", "message", "use"),
    [
        ("gone/p.toml", "there is no folder", "mkdir -p"),
        (".", "is a folder", "planned.toml"),
        ("plan", "no name of a job file", "plan.toml"),
        ("p.json", "no name of a job file", ".toml"),
    ],
)
def test_a_bad_place_is_refused_with_a_good_one(tmp_path: Path, place: str, message: str, use: str) -> None:
    with pytest.raises(Refused) as caught:
        refuse_place(tmp_path / place)
    assert (caught.value.exit_code, caught.value.key) == (2, "--save")
    assert message in caught.value.message
    assert use in caught.value.use


def test_a_place_that_takes_no_file_is_the_stores_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("paceline.ledger.atomic.write_text", full)
    with pytest.raises(Failed) as caught:
        ask(job(data__train="input.txt")).save(tmp_path / "p.toml")
    assert caught.value.exit_code == 55
    assert "No space left" in caught.value.seen

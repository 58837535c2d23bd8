"""``cluster measure --from X``: why X teaches nothing, each reason by its own words."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.api.calibrating import calibrate_from
from paceline.api.teaching import taught_by
from paceline.ledger.folder import RunFolder
from paceline.ledger.outcome import Exit, Refused
from tests.evidence.synthetic_run import write_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path / "runs")


def told(word: Path | str) -> str:
    with pytest.raises(Refused) as caught:
        calibrate_from([str(word)], None, lambda *_: None)
    assert (caught.value.exit_code, caught.value.key) == (Exit.USAGE, "--from")
    return caught.value.message


def test_a_run_with_plan_and_ledger_is_taken(run: RunFolder) -> None:
    assert [one.path for one in taught_by([str(run.path)])] == [run.path]


def test_what_is_no_run(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("train.steps = 3\n")
    (tmp_path / "empty").mkdir()
    assert told("job.toml") == "job.toml is no run"
    assert told("empty") == "empty is no run"
    with pytest.raises(Refused, match="no run 'nosuch'"):
        calibrate_from(["nosuch"], None, lambda *_: None)


def test_a_run_that_has_not_ended(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "shown_state", lambda _: "running")
    assert told(run.path) == f"{run.name} has not ended"


def test_a_run_without_what_it_takes(run: RunFolder) -> None:
    status = run.read_status()
    assert status is not None
    replace(status, state="failed").write(run.status)
    shutil.rmtree(run.ledgers)
    assert told(run.path) == f"{run.name} has no ledger"
    shutil.rmtree(run.phases)
    assert told(run.path) == f"{run.name} ended before it trained"
    run.manifest.unlink()
    assert told(run.path) == f"{run.name} has no manifest"

"""``paceline plan --measure K``: the real job is run, the best measured wins, and nothing is left of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.shell import in_process
from tests.flow.corpus import write_job

LAYOUTS = {"single", "dp=2", "fsdp=2"}


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    done = in_process(capsys, "plan", *words, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)["result"]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.api.contest.ENOUGH_S", 0.2)
    return str(write_job(tmp_path))


def test_the_best_two_run_and_nothing_is_left(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(p.name for p in tmp_path.iterdir())
    found = measured(capsys, job, "--measure", "2")
    ran = [c for c in found["candidates"] if c["kind_of_evidence"] == "measured"]
    assert len(ran) == 2
    assert all(c["predicted_step_s"][1] > 0 and c["measured_gib"] > 0.05 for c in ran)
    fastest = min(ran, key=lambda c: c["step_s"][1])
    assert found["best"]["verdict"] == "chosen"
    assert found["best"]["step_s"][1] <= 1.25 * fastest["step_s"][1]
    assert sorted(p.name for p in tmp_path.iterdir()) == before  # no run, no checkpoint


def test_a_layout_that_is_slow_here_loses_to_what_was_predicted_slower(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = measured(capsys, job)["best"]["layout"]
    assert chosen.startswith("single")
    monkeypatch.setattr("paceline.api.contest.ENTRY", "tests.flow.planted_slow:run")
    saved = tmp_path / "planned.toml"
    found = measured(capsys, job, "--measure", "3", "--save", str(saved))
    assert not found["best"]["layout"].startswith("single")
    [slow] = [c for c in found["candidates"] if c["layout"] == chosen]
    assert slow["verdict"] == "slower"
    assert slow["step_s"][1] > 0.25 > slow["predicted_step_s"][1]
    assert f'use = "{found["best"]["layout"]}"' in saved.read_text()


def test_a_layout_whose_rank_dies_is_told_and_another_chosen(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.api.contest.ENTRY", "tests.flow.planted_slow:die_alone")
    found = measured(capsys, job, "--measure", "3")
    failed = [c for c in found["candidates"] if c["verdict"].startswith("failed")]
    assert [c["layout"].partition(",")[0] for c in failed] == ["single"] * len(failed)
    assert failed
    assert not found["best"]["layout"].startswith("single")


def test_what_it_cannot_stand_beside(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words, code in (
        (("--what-if", "layout.use=dp=2"), 2),
        (("--scale", "1,2"), 2),
        (("--dry-run",), 2),
        (("--cluster", "8xH100-SXM-80GB"), 13),
    ):
        done = in_process(capsys, "plan", job, "--measure", "2", *words)
        assert done.code == code, done.err
        assert "use" in done.err

"""The last lines of a run: what they tell the user to type must lead back to this very run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cli.closing import ended, plan_text, stopped_text
from tests.cli.shell import in_process


def run_at(path: Path, *steps: int, exit_code: int = 50) -> Any:
    kept = [SimpleNamespace(step=step, latest=step == max(steps)) for step in steps]
    status = SimpleNamespace(step=121, steps=200, message="")
    return SimpleNamespace(
        path=path,
        name=path.name,
        state="preempted",
        exit_code=exit_code,
        status=status,
        checkpoints=lambda: kept,
    )


def test_the_run_itself_is_named_so_that_no_flag_is_lost() -> None:
    text = stopped_text(run_at(Path("runs/nn"), 100, 121))
    assert "saved runs/nn@121 (verified)" in text
    assert " · continue: paceline train runs/nn --resume · exit 50" in text


def test_a_path_with_a_blank_survives_the_shell() -> None:
    assert "paceline train 'my runs/nn' --resume" in stopped_text(run_at(Path("my runs/nn"), 3))
    assert ended(run_at(Path("my runs/nn"), 3, exit_code=41)).use == "paceline logs 'my runs/nn'"  # type: ignore[union-attr]


def test_without_a_checkpoint_there_is_nothing_to_resume() -> None:
    text = stopped_text(run_at(Path("runs/nn")))
    assert "nothing saved · begin again: paceline train runs/nn · exit 50" in text
    assert "--resume" not in text


def test_plan_hands_its_sets_to_the_line_that_says_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.api.plan.cache_folder", lambda: tmp_path)
    (tmp_path / "a.txt").write_text("word " * 4000)
    job_file = tmp_path / "j.toml"
    job_file.write_text('data.train = "a.txt"\nmodel.preset = "tiny"\ntrain.steps = 20\n')
    done = in_process(capsys, "plan", str(job_file), "--set", "train.steps=7", "--set", "run.name=a b", "-q")
    assert done.code == 2  # a run name has no blank
    done = in_process(capsys, "plan", str(job_file), "--set", "train.steps=7", "--layout", "single")
    (line,) = [line for line in done.out.splitlines() if line.startswith("next")]
    assert f"paceline train {job_file} --set train.steps=7 --layout single" in line


def test_an_interval_has_no_exponents() -> None:
    facts = SimpleNamespace(
        plan={"best": {"step_s": [27.4, 82.3, 153.2]}}, step_times=SimpleNamespace(p50=1234.5)
    )
    text = plan_text(facts)  # type: ignore[arg-type]
    assert text == "82.3 s predicted, 1 230 measured: outside its interval 27.4–153"

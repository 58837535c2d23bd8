"""Completion offers what is there, and is silent when anything fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli import complete
from paceline.ledger.folder import create
from paceline.ledger.status import Status
from tests.cli.shell import environment


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("stdlib", "small"):
        Status(state="done").write(create("runs", name).status)
    (tmp_path / "job.toml").write_text("")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "big.toml").write_text("")
    return tmp_path


def test_runs_and_jobs() -> None:
    assert set(complete.run_names("s")) == {"stdlib", "small"}
    assert complete.run_names("la") == ["last"]
    assert {"job.toml", "jobs/"} <= set(complete.job_words("jo"))
    assert complete.job_words("jobs/") == ["jobs/big.toml"]


@pytest.mark.parametrize(
    ("typed", "offered", "not_offered"),
    [
        ("f", "fsdp=", "dp="),
        ("fsdp=2,", "fsdp=2,tp=", "fsdp=2,fsdp="),
        ("fsdp=4:", "fsdp=4:zero2", "fsdp=4:zero9"),
        ("dp=2,mb", "dp=2,mbs=", "mbs="),
    ],
)
def test_layouts(typed: str, offered: str, not_offered: str) -> None:
    words = complete.layouts(typed)
    assert offered in words
    assert not_offered not in words


def test_keys_and_clusters() -> None:
    assert "train.steps=" in complete.set_keys("train.")
    assert not [word for word in complete.set_keys("") if word.startswith("lora.")]
    assert "optimizer" in complete.job_keys("opt")
    assert "8xH100-SXM-80GB" in complete.cluster_names("8xH100")


def test_a_source_that_fails_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.api.runs.runs", lambda root=None: 1 / 0)
    assert complete.run_names("s") == []


def test_a_shell_is_answered(here: Path) -> None:
    """What bash calls after ``--install-completion``."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline"],
        cwd=here,
        env=environment(
            _PACELINE_COMPLETE="complete_bash", COMP_WORDS="paceline logs st", COMP_CWORD="2"
        ),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["stdlib"], done.stderr

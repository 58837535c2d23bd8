"""doctor: each line is ok, a note, or what is missing and the command that adds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.api import surroundings
from paceline.cli import doctor
from paceline.cli.terminal import Terminal
from paceline.launch.environment import read


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No torch process, and an environment that a test sets."""
    monkeypatch.setattr(
        doctor,
        "_probe_torch",
        lambda: {"version": "2.13.0", "cuda": None, "devices": [], "gloo": True, "nccl": False},
    )
    monkeypatch.chdir(tmp_path)
    setting(monkeypatch, tmp_path)


def setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **variables: str) -> None:
    given = read({"HOME": str(tmp_path), **variables})
    monkeypatch.setattr(surroundings, "environment", lambda: given)


def by_topic() -> dict[str, list[doctor.Finding]]:
    found: dict[str, list[doctor.Finding]] = {}
    for finding in doctor.examine():
        found.setdefault(finding.about, []).append(finding)
    return found


def test_every_topic_has_a_line() -> None:
    found = by_topic()
    assert set(found) == {
        "system", "versions", "backends", "devices", "measured", "disk", "extras", "leftovers", "variables",
    }  # fmt: skip
    assert not [f for lines in found.values() for f in lines if f.state == "missing" and not f.use]


def test_a_missing_package_comes_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NEEDED", ("numpy", "no-such-package"))
    (_, missing) = by_topic()["versions"]
    assert (missing.state, missing.use) == ("missing", "pip install no-such-package")


def test_a_torch_that_cannot_be_imported_is_told_in_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_probe_torch", lambda: "ImportError: libgomp.so.1 not found")
    (line,) = by_topic()["backends"]
    assert (line.state, line.says) == ("missing", "ImportError: libgomp.so.1 not found")


def test_unknown_and_leftover_variables_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setting(monkeypatch, tmp_path, PACELINE_DEBUG="1", LOCAL_RANK="0")
    lines = {line.use: line.state for line in by_topic()["variables"]}
    assert lines == {"unset LOCAL_RANK": "note", "unset PACELINE_DEBUG": "missing"}


def test_leftovers_are_found(tmp_path: Path) -> None:
    (tmp_path / "runs" / ".old.deleting").mkdir(parents=True)
    (line,) = by_topic()["leftovers"]
    assert (line.state, line.use) == ("note", "rm -r runs/.old.deleting")


def test_the_text_counts_what_is_missing() -> None:
    findings = [
        doctor.Finding("disk", "ok", "fine"),
        doctor.Finding("versions", "missing", "x", "pip install x"),
    ]
    assert doctor.text(findings, Terminal()).splitlines() == [
        "ok       disk      fine",
        "missing  versions  x",
        "                   → pip install x",
        "1 missing",
    ]

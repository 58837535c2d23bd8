"""A file is the old version or the new one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paceline.ledger import atomic


def test_json_goes_round_and_nothing_else_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    atomic.write_json(path, {"a": [1, 2.5, "é"]})
    assert atomic.read_json(path) == {"a": [1, 2.5, "é"]}
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_failed_write_leaves_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.txt"
    atomic.write_text(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic.write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.txt"]


def test_nan_is_refused_because_it_is_not_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        atomic.write_json(tmp_path / "x.json", {"a": float("nan")})
    assert os.listdir(tmp_path) == []


def test_a_reader_that_may_not_raise_gets_its_default(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"a": 1')
    assert atomic.read_json_or(tmp_path / "half.json", {}) == {}
    assert atomic.read_json_or(tmp_path / "absent.json", None) is None
    with pytest.raises(json.JSONDecodeError):
        atomic.read_json(tmp_path / "half.json")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "", "{", "9" * 5000, b"\xff".decode("latin-1")]
)
def test_what_is_not_json_is_the_default_and_never_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="latin-1")
    assert atomic.read_json_or(path, "default") == "default"
    with pytest.raises(ValueError):
        atomic.read_json(path)

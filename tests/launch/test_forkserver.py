"""Entries by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.launch.forkserver import find
from paceline.launch.local import run_ranks
from tests.launch import cases


def test_an_entry_is_found_by_its_name() -> None:
    assert find("tests.launch.cases:whoami") is cases.whoami


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ("tests.launch.cases", ValueError),
        ("tests.launch.cases:absent", AttributeError),
        ("tests.launch.cases:Emit.__module__", AttributeError),
        ("tests.absent:run", ModuleNotFoundError),
        ("tests.launch.cases:os", TypeError),
    ],
)
def test_a_wrong_name_says_so(entry: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        find(entry)


def test_the_server_has_one_thread_when_ranks_are_forked(tmp_path: Path) -> None:
    """A fork of a process with threads can hang. torch and all that is preloaded with it must not start any."""
    results = run_ranks("tests.launch.cases:server_threads", {}, world_size=1, logs=tmp_path)
    assert results == [{"threads": 1, "preloaded": True}]

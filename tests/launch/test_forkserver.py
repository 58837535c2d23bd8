"""Entries by name."""

from __future__ import annotations

import pytest

from paceline.launch.forkserver import find
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

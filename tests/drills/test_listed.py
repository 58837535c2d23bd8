"""The list and the markers agree: each drill has tests or a reason, and no marker names what is not listed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.drills.listed import DRILLS
from tests.drills.table import Result, page, state

TESTS = Path(__file__).parents[1]


def marked() -> set[int]:
    """The numbers in every ``pytest.mark.drill(…)`` below ``tests``."""
    found: set[int] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.drill":
                found.update(one.value for one in node.args if isinstance(one, ast.Constant))
    return found


def test_every_drill_has_a_test_or_a_reason() -> None:
    assert list(DRILLS) == list(range(1, 67))
    assert marked() <= set(DRILLS)
    assert {number for number, drill in DRILLS.items() if not drill.not_yet} <= marked()


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([Result("t", passed=2)], "covered"),
        ([Result("t", passed=2), Result("u", failed=1)], "failing"),
        ([Result("t", passed=1, skipped=1)], "skipped"),
        ([], "not yet"),
    ],
)
def test_a_drill_is_as_good_as_its_worst_test(results: list[Result], expected: str) -> None:
    found = {1: {one.test: one for one in results}}
    assert state(1, found) == expected
    text = page(found, 1.0)
    assert f"1 {expected}" in text or expected == "not yet"
    assert all(f"D{number:02d}" in text for number in DRILLS)

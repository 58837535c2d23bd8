"""Every test that the table of rows names is there, and no row is both held and not yet."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.faults.rows import NOT_YET, ROWS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_of_a_row_are_there(row: str) -> None:
    assert ROWS[row]
    for node in ROWS[row]:
        file, _, name = node.partition("::")
        found = {
            n.name for n in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(n, ast.FunctionDef)
        }
        assert name in found, node


def test_a_row_is_held_or_not_yet() -> None:
    assert not set(ROWS) & set(NOT_YET)

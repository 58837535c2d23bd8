"""The table of exit codes in the docs is the one that the code ends with."""

from __future__ import annotations

import re

from paceline.ledger.outcome import MEANING, Exit
from tests.cli.shell import ROOT

BLOCKS = {1: "plan", 2: "compute", 3: "deliver", 4: "update", 5: "recover", 6: "evidence"}


def rows() -> dict[int, tuple[str, str]]:
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    return {int(m[1]): (m[2], m[3]) for m in re.finditer(r"^\| (\d+) \| (\S+) \| (.+) \|$", text, re.M)}


def test_every_code_has_its_row_and_its_meaning() -> None:
    assert {code: meaning for code, (_, meaning) in rows().items()} == {int(e): MEANING[e] for e in Exit}


def test_the_blocks_are_the_phases() -> None:
    assert {code: block for code, (block, _) in rows().items() if code >= 10} == {
        int(e): BLOCKS[int(e) // 10] for e in Exit if e >= 10
    }


def test_no_code_is_the_shells() -> None:
    assert max(Exit) < 126

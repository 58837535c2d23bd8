"""A ledger that somebody damaged is read as far as it goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.ledger.accounts import accounts, split_waits, step_accounts
from paceline.ledger.folder import RunFolder, create
from paceline.ledger.lines import read_rank, read_ranks
from paceline.ledger.spans import CallRow, Ledger
from tests.ledger.test_spans import FakeClock

HOSTILE: list[Any] = ["x", None, [], {}, [["x"]], -1, 1e308, float("nan"), float("inf"), 10**400, True, [{}]]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = create(tmp_path, "r")
    clock = FakeClock()
    ledger = Ledger(made.ledger(0), 0, 0, clock)
    for step in (1, 2):
        with ledger.span("deliver", "dp/all_reduce"):
            clock.tick(1.0)
        ledger.call(CallRow("dp", "dp:0", "all_reduce", step, 8, clock() - 1, clock()))
        ledger.close_step(step)
    ledger.close()
    return made


@pytest.mark.parametrize("value", HOSTILE, ids=str)
def test_a_wrong_value_anywhere_costs_its_line_at_most(folder: RunFolder, value: Any) -> None:
    path = folder.ledger(0)
    good = path.read_text().splitlines()
    for number, line in enumerate(good):
        for key in json.loads(line):
            for harmed in (value, [value], [[value] * 4], [[value] * 9]):
                text = json.dumps({**json.loads(line), key: harmed})
                path.write_text("\n".join([*good[:number], text, *good[number + 1 :]]) + "\n")
                for rank in split_waits(read_ranks(folder)).ranks:
                    step_accounts(rank)
                for account in accounts(folder).values():
                    assert account.wall_s < 1e12


def test_nesting_without_end_costs_its_line(folder: RunFolder) -> None:
    before = read_rank(folder.ledger(0))
    with folder.ledger(0).open("a") as file:
        file.write("[" * 100_000 + "\n")
    assert read_rank(folder.ledger(0)) == before

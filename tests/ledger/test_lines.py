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


@pytest.mark.parametrize("factor", [1e12, 1.01, -1.0, -1e-6])
def test_seconds_that_the_line_does_not_have_cost_it(folder: RunFolder, factor: float) -> None:
    """Changed durations are not learnt from: spans are no longer than their line, and end after they start."""
    path = folder.ledger(0)
    changed = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        row |= {"spans": [[p, r, s, d * factor] for p, r, s, d in row["spans"]]} if "spans" in row else {}
        changed.append(json.dumps(row))
    before = [line.step for line in read_rank(path).lines]
    path.write_text("\n".join(changed) + "\n")
    assert {1, 2} <= set(before)
    assert not {1, 2} & {line.step for line in read_rank(path).lines}


def test_a_ledger_of_another_schema_is_not_guessed_at(folder: RunFolder) -> None:
    path = folder.ledger(0)
    path.write_text(path.read_text().replace('"schema":1', '"schema":99', 1))
    assert read_rank(path).lines == ()

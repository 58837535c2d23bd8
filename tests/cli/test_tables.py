"""Tables lose right-hand columns before they wrap."""

from __future__ import annotations

import pytest

from paceline.cli.tables import ago, bytes_text, facts, table

HEAD = ("NAME", "STATE", "LOSS", "DISK")
ROWS = [("stdlib-2", "running", None, "60 MB"), ("stdlib", "done", "4.802", "121 MB")]


def test_columns_align_and_an_absent_value_is_a_dash() -> None:
    assert table(HEAD, ROWS, width=80, right=("LOSS", "DISK")).splitlines() == [
        " NAME      STATE     LOSS    DISK",
        " stdlib-2  running      –   60 MB",
        " stdlib    done     4.802  121 MB",
    ]


@pytest.mark.parametrize(("width", "columns"), [(80, 4), (33, 4), (32, 3), (24, 2), (5, 2)])
def test_right_hand_columns_go_first(width: int, columns: int) -> None:
    text = table(HEAD, ROWS, width=width, right=("LOSS", "DISK"))
    assert len(text.splitlines()[0].split()) == columns
    if columns > 2:
        assert max(map(len, text.splitlines())) <= width


def test_facts_leave_out_what_is_not_there() -> None:
    assert facts([("step", 3), ("note", ""), ("layout", "fsdp=2")]) == "step    3\nlayout  fsdp=2"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (999, "999 B"),
        (60_000_000, "60 MB"),
        (1_434_000_000, "1.43 GB"),
        (121.4e6, "121 MB"),
    ],
)
def test_bytes(count: float | None, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "3 s ago"), (125, "2 min ago"), (4000, "1 h ago"), (90000, "1 day ago"), (2e5, "2 days ago")],
)
def test_ago(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_cells_do_not_act_on_the_terminal() -> None:
    assert table(("A",), [("x\x1b[2J\ny",)], width=80).split("\n")[1] == " x\\x1b[2J\\ny"
    assert facts([("k\n", "\x1b[2J")]) == "k\\n  \\x1b[2J"

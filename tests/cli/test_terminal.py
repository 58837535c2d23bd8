"""The matrix of interface §11: colour, liveness, characters and width are decided apart."""

from __future__ import annotations

import pytest

from paceline.cli.terminal import decide


def terminal(
    color: str = "auto",
    *,
    tty: bool = True,
    encoding: str | None = "utf-8",
    columns: int | None = 120,
    **variables: str,
):
    return decide(color, variables, tty=tty, encoding=encoding, columns=columns)


@pytest.mark.parametrize(
    ("color", "variables", "tty", "expected"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("always", {"NO_COLOR": "1", "TERM": "dumb"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, True, False),
        ("auto", {"FORCE_COLOR": "true", "TERM": "dumb"}, False, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"CI": "1"}, True, True),
    ],
)
def test_colour(color: str, variables: dict[str, str], tty: bool, expected: bool) -> None:
    assert terminal(color, tty=tty, **variables).colour is expected


@pytest.mark.parametrize(
    ("variables", "tty", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"FORCE_COLOR": "1"}, False, False),
        ({"FORCE_COLOR": "0"}, True, True),
        ({"NO_COLOR": "1"}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"CI": "true"}, True, False),
        ({"CI": ""}, True, True),
    ],
)
def test_live_whatever_the_colour(variables: dict[str, str], tty: bool, expected: bool) -> None:
    assert terminal(tty=tty, **variables).live is expected


def test_width_is_columns_then_the_terminal_then_100() -> None:
    assert terminal(COLUMNS="77").width == 77
    assert terminal(columns=120).width == 120
    assert terminal(columns=None).width == 100
    assert terminal(COLUMNS="wide", columns=None).width == 100
    assert terminal(COLUMNS="3").width == 40


def test_without_utf8_every_sign_has_an_ascii_one() -> None:
    plain = terminal(encoding="ISO-8859-1")
    assert not plain.unicode
    assert plain.plain("12 × 3 · 1–2 → ━━╸──…").encode("ascii") == b"12 x 3 - 1-2 -> ###--..."
    assert terminal(encoding="UTF-8").plain("×") == "×"
    assert not terminal(encoding=None).unicode


def test_paint_changes_no_words() -> None:
    assert terminal("never").paint("error", "error") == "error"
    painted = terminal("always").paint("error", "error")
    assert "error" in painted
    assert painted != "error"

"""Errors as text: five fields on one screen, whatever is in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.ledger.outcome import Exit, PacelineError, Refused, from_dict, printable, render


def test_every_field_in_its_place() -> None:
    error = Refused(
        "no", exit_code=Exit.RULE, key="k", seen="a", rule="b", allowed="c", use="d", where="j.toml:1"
    )
    assert render(error, width=40).splitlines() == [
        "error  k: no",
        "  seen     a                    j.toml:1",
        "  rule     b",
        "  allowed  c",
        "  use      d                     exit 10",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x9b31m\u2028\u202e", "\\x9b31m\\u2028\\u202e"),
        ("\ud800", "\\ud800"),
        ("légère 東京 · –", "légère 東京 · –"),
    ],
)
def test_what_acts_on_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_long_text_is_cut() -> None:
    text = render(Refused("x" * 9000, key="k" * 9000, seen="s\n" * 900, use="u" * 9000, where="w" * 9000))
    assert len(text) < 8000
    assert text.count("\n") < 24


words = st.text(st.characters(), max_size=30)


@given(words, words, words, words, words, words)
def test_the_form_holds_whatever_the_words_are(
    message: str, key: str, seen: str, rule: str, use: str, where: str
) -> None:
    error = PacelineError(message, key=key, seen=seen, rule=rule, use=use, where=where)
    first, *rest = render(error).split("\n")
    assert first.startswith("error  ")
    assert all(line.isprintable() for line in (first, *rest))
    assert all(line.startswith("  ") for line in rest)
    assert sum(line.startswith("  use ") for line in rest) == bool(use)
    assert from_dict(error.to_dict()).to_dict() == error.to_dict()

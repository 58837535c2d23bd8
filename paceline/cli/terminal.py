"""What the terminal can show: liveness, colour, characters and width, each decided apart (interface §11).

``decide`` is a pure function of values that were read once, so every row of the matrix is a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_WIDTH = 100
COLOR_CHOICES = ("auto", "always", "never")


@dataclass(frozen=True)
class Terminal:
    """What may be written to stderr; ``width`` holds for stdout too."""

    live: bool = False
    colour: bool = False
    unicode: bool = True
    width: int = DEFAULT_WIDTH

    def paint(self, text: str, style: str) -> str:
        """``text`` in a style, or as it is; what a style says is always in the words too."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour else text

    def plain(self, text: str) -> str:
        """``text`` in characters that this terminal has."""
        return text if self.unicode else text.translate(_ASCII)


_STYLES = {"error": "1;31", "warn": "33", "word": "1", "dim": "2", "good": "32"}
_ASCII = str.maketrans(
    {
        "·": "-", "–": "-", "—": "-", "×": "x", "…": "...", "→": "->", "≥": ">=", "≤": "<=", "ε": "epsilon",
        "━": "#", "╸": "#", "╺": "-", "─": "-", "✓": "ok", "│": "|",
    }
)  # fmt: skip


def decide(
    color: str,
    variables: Mapping[str, str],
    *,
    tty: bool,
    encoding: str | None,
    columns: int | None,
) -> Terminal:
    """The terminal's abilities.

    Args:
        color: ``--color``: auto, always or never.
        variables: the colour and terminal variables of ``launch/environment.py`` (absent = not set).
        tty: whether stderr is a terminal.
        encoding: stderr's encoding.
        columns: the terminal's own width, None where there is none.
    """
    dumb = variables.get("TERM", "") == "dumb"
    return Terminal(
        live=tty and not dumb and not variables.get("CI"),
        colour=_colour(color, variables, tty=tty, dumb=dumb),
        unicode=(encoding or "ascii").lower().replace("-", "") in ("utf8", "utf8sig", "utf16", "utf32"),
        width=_width(variables, columns),
    )


def _colour(color: str, variables: Mapping[str, str], *, tty: bool, dumb: bool) -> bool:
    if color != "auto":
        return color == "always"
    if variables.get("NO_COLOR"):
        return False
    if variables.get("FORCE_COLOR"):
        return variables["FORCE_COLOR"] != "0"
    return tty and not dumb


def _width(variables: Mapping[str, str], columns: int | None) -> int:
    stated = variables.get("COLUMNS", "")
    if stated.isdigit() and int(stated) > 0:
        return max(40, int(stated))
    return max(40, columns) if columns else DEFAULT_WIDTH

"""Where each key of a TOML text stands: its line and its value as written, for errors that can be acted on.

``tomllib`` keeps no positions. It has parsed the text before, so this scanner may trust the syntax; where
it loses its way all the same, it stops and knows fewer places, which costs an error its line number and
nothing else.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"""(?:"{0,2}(?!"))', re.S),
    re.compile(r"'''.*?'''(?:'{0,2}(?!'))", re.S),
    re.compile(r'"(?:\\.|[^"\\\n])*"'),
    re.compile(r"'[^'\n]*'"),
)
_SCALAR = re.compile(r"[^,\]}#\n]+")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\", "e": "\x1b"}
_ESCAPE = re.compile(r'\\(?:([btnfre"\\])|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{2}))')
LONGEST_SEEN = 60


@dataclass(frozen=True)
class Place:
    """Line (from 1) and text of a value."""

    line: int
    text: str


class _Lost(Exception):
    """The scanner and the text disagree."""


@dataclass
class _Scanner:
    text: str
    at: int = 0
    places: dict[tuple[str, ...], Place] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.breaks = [at for at, letter in enumerate(self.text) if letter == "\n"]

    def take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise _Lost
        self.at = found.end()
        return found[0]

    def expect(self, mark: str) -> None:
        if not self.text.startswith(mark, self.at):
            raise _Lost
        self.at += len(mark)

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def document(self) -> None:
        table: tuple[str, ...] = ()
        self.take(_BLANK)
        while self.at < len(self.text):
            if self.peek() == "[":
                start = self.at
                marks = 2 if self.text.startswith("[[", self.at) else 1
                self.at += marks
                table = self.key()
                self.expect("]" * marks)
                self.note(table, start, self.at)
            else:
                self.pair(table)
            self.take(_BLANK)

    def key(self) -> tuple[str, ...]:
        parts = []
        while True:
            self.take(_SPACE)
            parts.append(self.key_part())
            self.take(_SPACE)
            if self.peek() != ".":
                return tuple(parts)
            self.at += 1

    def key_part(self) -> str:
        if self.peek() == "'":
            return self.take(_STRINGS[3])[1:-1]
        if self.peek() == '"':
            return _ESCAPE.sub(_unescaped, self.take(_STRINGS[2])[1:-1])
        return self.take(_BARE)

    def pair(self, table: tuple[str, ...]) -> None:
        start = self.at
        name = table + self.key()
        self.expect("=")
        self.take(_SPACE)
        value = self.at
        self.places.setdefault(name, Place(self.line(start), ""))
        self.value(name)
        self.places[name] = Place(self.line(start), self.text[value : self.at].strip())

    def value(self, name: tuple[str, ...]) -> None:
        mark = self.peek()
        if mark == "[":
            self.at += 1
            self.take(_BLANK)
            while self.peek() != "]":
                self.value(name)
                self.separator()
            self.at += 1
        elif mark == "{":
            self.at += 1
            self.take(_BLANK)
            while self.peek() != "}":
                self.pair(name)
                self.separator()
            self.at += 1
        elif mark and mark in "\"'":
            for pattern in _STRINGS:
                if pattern.match(self.text, self.at):
                    self.take(pattern)
                    return
            raise _Lost
        else:
            self.take(_SCALAR)

    def separator(self) -> None:
        self.take(_BLANK)
        if self.peek() == ",":
            self.at += 1
            self.take(_BLANK)
        elif self.peek() not in ("]", "}"):
            raise _Lost

    def line(self, at: int) -> int:
        return bisect_left(self.breaks, at) + 1

    def note(self, name: tuple[str, ...], start: int, end: int) -> None:
        for length in range(1, len(name) + 1):
            self.places.setdefault(name[:length], Place(self.line(start), self.text[start:end]))


def _unescaped(found: re.Match[str]) -> str:
    if found[1]:
        return _ESCAPES[found[1]]
    try:
        return chr(int(found[2] or found[3] or found[4], 16))
    except (ValueError, OverflowError):
        raise _Lost from None


def places(text: str) -> dict[str, Place]:
    """Dotted key → where it stands, for every key that the scanner found."""
    scanner = _Scanner(text)
    try:
        scanner.document()
    except (_Lost, RecursionError):
        pass
    return {".".join(name): place for name, place in scanner.places.items()}


def shortened(text: str) -> str:
    """One line of a value, for a message."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_SEEN else line[: LONGEST_SEEN - 1] + "…"

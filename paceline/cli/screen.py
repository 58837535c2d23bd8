"""Where a command's words go: the result to stdout, everything else to stderr; or JSON to stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TextIO

from paceline.cli.streams import StdoutLost, put, put_result
from paceline.cli.terminal import Terminal, decide
from paceline.ledger.outcome import LONGEST_REPAIR, PacelineError, printable, render

SCHEMA = 1


@dataclass(frozen=True)
class Reply:
    """What a command answers: ``result`` for ``--json``, ``text`` for people, and how the process ends."""

    result: Any = None
    text: str | Callable[[Terminal], str] = ""
    exit_code: int = 0
    error: PacelineError | None = None


@dataclass
class Screen:
    """One command's streams and flags."""

    command: str = ""
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    terminal: Terminal = field(default_factory=Terminal)
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    outlives_reader: bool = False
    """What is done goes on, and ends with its own code, although stdout takes nothing any more (a training)."""
    _out_lost: bool = field(default=False, init=False)
    _err_lost: bool = field(default=False, init=False)

    def note(self, text: str) -> None:
        """Progress, on stderr; silent under ``-q`` and ``--json``."""
        if not (self.quiet or self.json):
            self.aside(self.terminal.plain(printable(text, LONGEST_REPAIR)))

    def warn(self, text: str) -> None:
        """A warning, on stderr; also under ``--json``, since stdout stays clean."""
        if not self.quiet:
            word = self.terminal.paint("warn", "warn")
            self.aside(f"{word}     {self.terminal.plain(printable(text))}")

    def aside(self, text: str) -> None:
        """A line on stderr; when nobody takes it, it is lost and nothing else is."""
        if not self._err_lost:
            self._err_lost = not put(text, self.err)

    def line(self, text: str) -> None:
        """A line of the result, on stdout.

        Raises:
            StdoutLost: nobody takes it, and the command is for that alone.
        """
        if self._out_lost:
            return
        try:
            put_result(_for_stream(text, self.out), self.out)
        except StdoutLost:
            self._out_lost = True
            if not self.outlives_reader:
                raise

    def object(self, **fields: Any) -> None:
        """One line of a stream of objects (``train``, ``logs -f``)."""
        self.line(to_json({"schema": SCHEMA, "command": self.command, **fields}))

    def finish(self, reply: Reply) -> int:
        """Prints the reply; returns the exit code."""
        if self.json:
            self._envelope(reply)
        else:
            text = reply.text(self.terminal) if callable(reply.text) else reply.text
            if text:
                self.line(text)
            if reply.error is not None:
                self._explain(reply.error)
        return reply.exit_code

    def error(self, error: PacelineError) -> int:
        """An error in the form of interface §9, or as the same fields in JSON."""
        return self.finish(Reply(exit_code=error.exit_code, error=error))

    def _envelope(self, reply: Reply) -> None:
        self.object(
            ok=reply.exit_code == 0,
            exit_code=int(reply.exit_code),
            error=reply.error.to_dict() if reply.error else None,
            result=reply.result,
        )

    def _explain(self, error: PacelineError) -> None:
        text = self.terminal.plain(render(error, width=self.terminal.width))
        if text.startswith("error"):
            text = self.terminal.paint("error", "error") + text[len("error") :]
        self.aside(text)


def open_screen(command: str, *, json: bool, quiet: bool, verbose: bool, color: str) -> Screen:
    """The screen of this process, from its streams and the variables that were read once."""
    from paceline.api.surroundings import terminal_variables

    terminal = decide(
        color,
        terminal_variables(),
        tty=_is_tty(sys.stderr),
        encoding=getattr(sys.stderr, "encoding", None),
        columns=_columns(),
    )
    return Screen(command, json, quiet, verbose, terminal)


def to_json(value: Any) -> str:
    """One line of JSON; paths and enums become strings, NaN and infinity null (JSON has neither)."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_encode)
    except ValueError:
        plain = json.loads(json.dumps(value, default=_encode), parse_constant=lambda _: None)
        return json.dumps(plain, ensure_ascii=False)


def _encode(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def _for_stream(text: str, stream: TextIO) -> str:
    """stdout may be a file in another encoding than the terminal's."""
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return Terminal(unicode=False).plain(text).encode("ascii", "replace").decode()
    return text


def _is_tty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (ValueError, AttributeError):
        return False


def _columns() -> int | None:
    for stream in (sys.stderr, sys.stdout):
        try:
            return os.get_terminal_size(stream.fileno()).columns or None
        except (OSError, ValueError, AttributeError):
            continue
    return None

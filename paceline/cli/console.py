"""The console of a run: one live line on a terminal, ``key=value`` lines elsewhere, objects under ``--json``.

It is given a run's messages (metrics rows, events, and what the run says of itself) and shows them; it
decides nothing. Everything goes to stderr but the objects, which are the result.

A training outlives its readers: when the pipe's other end is closed (``train --json | head -1``), the disk is
full or the terminal is gone, the console says no more there, and the run goes on to its end and its own code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, TextIO, cast

from paceline.api.lines import Message, PlainLines, Progress, clock_text, preparing_text
from paceline.cli.screen import Screen
from paceline.cli.streams import Tolerant
from paceline.cli.terminal import Terminal
from paceline.ledger.outcome import LONGEST_REPAIR, printable

REFRESHES_PER_S = 5
LEAST_BAR, MOST_BAR = 8, 28
QUIET_EVENTS = ("checkpoint",)


class Console:
    """``with Console(screen, …) as console: train(…, on_message=console.message)``."""

    def __init__(
        self, screen: Screen, *, steps: int = 0, every: tuple[str, float] = ("seconds", 10.0)
    ) -> None:
        self._screen = screen
        screen.outlives_reader = True
        self._lines = PlainLines(steps=steps, every=every)
        live = screen.terminal.live and not (screen.json or screen.quiet)
        self._live = LiveLine(screen, steps) if live else None

    def __enter__(self) -> Console:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def message(self, message: Message) -> None:
        """Shows one message of the run."""
        if self._screen.json:
            self._screen.object(**{k: v for k, v in message.items() if k not in ("schema", "command")})
        elif self._live is not None and self._live.running:
            self._live.take(message)
        elif not self._screen.quiet:
            line = self._lines.line(message)
            if line is not None:
                self._screen.aside(self._screen.terminal.plain(line))


class LiveLine:
    """The terminal's view: headings scroll away above one line that is redrawn."""

    def __init__(self, screen: Screen, steps: int) -> None:
        self._screen, self._progress = screen, Progress(steps)
        self._live: Any = None
        self._hook: Callable[..., Any] | None = None

    @property
    def running(self) -> bool:
        return self._live is not None

    def start(self) -> None:
        """Begins to redraw; ``print`` and warnings appear above the line."""
        from rich.console import Console as RichConsole
        from rich.live import Live

        terminal = self._screen.terminal
        # rich is told what was decided: left alone it reads FORCE_COLOR=0 as "a terminal with colour".
        console = RichConsole(
            file=cast(TextIO, Tolerant(self._screen.err)),
            force_terminal=True,
            color_system="standard" if terminal.colour else None,
            no_color=not terminal.colour,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
            _environ={"TERM": "xterm", "COLUMNS": str(terminal.width)},
        )
        self._live = Live(
            console=console,
            get_renderable=self._renderable,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
            redirect_stdout=self._screen.out.isatty(),
        )
        self._live.start()
        self._hook, sys.breakpointhook = sys.breakpointhook, self._breakpoint

    def stop(self) -> None:
        """Leaves the terminal as it was."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
        if self._hook is not None:
            sys.breakpointhook, self._hook = self._hook, None

    def take(self, message: Message) -> None:
        """A train row redraws the line; everything else is printed above it."""
        self._progress.take(message)
        text = heading(message, verbose=self._screen.verbose)
        if text:
            word, rest = text[:8], text[8:]
            painted = self._screen.terminal.paint(word, "warn" if word.startswith("warn") else "word")
            self._above(self._screen.terminal.plain(painted + rest))

    def _above(self, text: str) -> None:
        from rich.text import Text

        self._live.console.print(Text.from_ansi(text), soft_wrap=True)

    def _renderable(self) -> Any:
        from rich.text import Text

        return Text.from_ansi(step_line(self._progress, self._screen.terminal), no_wrap=True, overflow="crop")

    def _breakpoint(self, *args: Any, **kwargs: Any) -> Any:
        """``breakpoint()`` in the user's model: the terminal is given back first, lines follow after."""
        hook = self._hook or sys.__breakpointhook__
        self.stop()
        if hook is sys.__breakpointhook__ and not args and not kwargs:
            import pdb

            caller: FrameType | None = sys._getframe().f_back
            return pdb.Pdb().set_trace(caller)
        return hook(*args, **kwargs)


def heading(message: Message, *, verbose: bool = False) -> str:
    """The line that a message leaves on a terminal, or an empty string."""
    kind = message.get("kind")
    if kind == "say":
        return printable(f"{message.get('field', '')!s:<8} {message.get('text', '')}", LONGEST_REPAIR)
    if kind == "eval":
        return f"{'eval':<8} {eval_text(message)}"
    if kind == "event" and (verbose or message.get("event") not in QUIET_EVENTS):
        word, detail = str(message.get("event", "event")), message.get("detail", "")
        if isinstance(detail, Mapping):
            detail = " ".join(f"{key}={value}" for key, value in detail.items())
        return printable(f"{word:<8} step {message.get('step', 0)} · {detail}", LONGEST_REPAIR)
    return ""


def eval_text(row: Message) -> str:
    """``step 100 · held-out loss 5.402 · 2.06 bits/byte``."""
    which = {None: "held-out", "eval": "held-out", "held-out": "held-out"}.get(row.get("set"), row.get("set"))
    parts = [f"step {row.get('step', 0)}"]
    if row.get("loss") is not None:
        parts.append(f"{which} loss {row['loss']:.3f}")
    if row.get("bits_per_byte") is not None:
        parts.append(f"{row['bits_per_byte']:.2f} bits/byte")
    return " · ".join(parts)


def step_line(progress: Progress, terminal: Terminal) -> str:
    """``step 120/200 ━━━━╸━━━━  loss 5.214 · 1.99 bits/byte · 19 980 tok/s · MFU 24 % · 0:33 left``."""
    if not progress.row:
        return terminal.plain(_preparing_line(progress.preparing, terminal))
    head = f"step {progress.step}/{progress.steps}" if progress.steps else f"step {progress.step}"
    parts = _parts(progress)
    for least in ("mfu", "tok/s", "bits/byte"):  # what goes first when the line is too short
        if len(head) + LEAST_BAR + 3 + len(" · ".join(parts.values())) > terminal.width:
            parts.pop(least, None)
    tail = " · ".join(parts.values())
    room = min(MOST_BAR, terminal.width - len(head) - len(tail) - 3)
    drawn = (
        f" {bar(progress.step, progress.steps, room, terminal)}"
        if progress.steps and room >= LEAST_BAR
        else ""
    )
    return terminal.plain(f"{head}{drawn}  {tail}")


def _preparing_line(message: Message, terminal: Terminal) -> str:
    """``data     ━━━━━━━━──────  tokenise 45 %, 812 documents``, before the first step."""
    if not message:
        return ""
    done, total = int(message.get("done_bytes") or 0), int(message.get("total_bytes") or 0)
    drawn = bar(done, total, MOST_BAR, terminal) + "  " if total else ""
    return f"{'data':<8} {drawn}{preparing_text(message)}"


def _parts(progress: Progress) -> dict[str, str]:
    row, left_s = progress.row, progress.left_s
    shown = {
        "loss": None if row.get("loss") is None else f"loss {row['loss']:.3f}",
        "bits/byte": None if row.get("bits_per_byte") is None else f"{row['bits_per_byte']:.2f} bits/byte",
        "tok/s": None if row.get("tokens_per_s") is None else f"{spaced(row['tokens_per_s'])} tok/s",
        "mfu": None if row.get("mfu") is None else f"MFU {100 * row['mfu']:.0f} %",
        "left": None if left_s is None else f"{clock_text(left_s)} left",
    }
    return {name: text for name, text in shown.items() if text}


def bar(done: int, total: int, width: int, terminal: Terminal) -> str:
    """A bar that reads without colour: the done part is heavy, the rest light."""
    if not total:
        return ""
    filled = min(width, round(width * done / total))
    rest = width - filled
    if not terminal.colour:
        return "━" * filled + "─" * rest
    head = "━" * max(0, filled - 1) + ("╸" if 0 < filled < width else "━" * min(1, filled))
    return terminal.paint(head, "good") + terminal.paint("━" * rest, "dim")


def spaced(number: float) -> str:
    """``19 980``: thousands apart by a blank."""
    return f"{number:,.0f}".replace(",", " ")

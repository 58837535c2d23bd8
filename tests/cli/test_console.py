"""The run's console: the live line on a terminal, ``key=value`` lines elsewhere, objects under --json."""

from __future__ import annotations

import io
import json
import re

import pytest

from paceline.api.lines import Progress
from paceline.cli.console import Console, bar, heading, step_line
from paceline.cli.screen import Screen
from paceline.cli.terminal import Terminal
from tests.cli.shell import on_terminal

ROW = {
    "kind": "train", "step": 120, "attempt": 0, "time_s": 49.2, "loss": 5.214, "bits_per_byte": 1.99,
    "grad_norm": 0.83, "lr": 2.4e-4, "tokens_per_s": 19980.0, "mfu": 0.24, "memory_gib": 1.2,
    "exposed_communication": 0.0, "step_time_s": 0.41,
}  # fmt: skip

RUN = """
import sys
from paceline.cli.console import Console
from paceline.cli.screen import open_screen
screen = open_screen("train", json={json}, quiet=False, verbose=False, color="{color}")
with Console(screen, steps=4, every=("steps", 2)) as console:
    console.message({{"kind": "say", "field": "plan", "text": "single · predicts 0.41 s a step"}})
    for step in range(1, 5):
        console.message({{"kind": "train", "step": step, "loss": 6.0 - step, "step_time_s": 0.4}})
        if step == 2:
            print("printed by the user's model")
        if {live}:
            console._live._live.refresh()
    console.message({{"kind": "eval", "step": 4, "set": "held-out", "loss": 5.402, "bits_per_byte": 2.06}})
"""
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def progress(steps: int = 200, **changes: object) -> Progress:
    known = Progress(steps)
    known.take({**ROW, **changes})
    return known


def screen(terminal: Terminal, **flags: bool) -> Screen:
    return Screen("train", terminal=terminal, out=io.StringIO(), err=io.StringIO(), **flags)


def test_the_step_line_is_that_of_the_interface() -> None:
    assert step_line(progress(), Terminal(width=110)) == (
        "step 120/200 ━━━━━━━━━━━━━━━━━───────────  "
        "loss 5.214 · 1.99 bits/byte · 19 980 tok/s · MFU 24 % · 0:33 left"
    )


@pytest.mark.parametrize("width", range(40, 140, 7))
def test_the_step_line_fits_every_width_and_keeps_the_time_left(width: int) -> None:
    line = step_line(progress(), Terminal(width=width))
    assert len(line) <= width
    assert "loss 5.214" in line
    assert "left" in line


def test_the_step_line_in_ascii_and_without_a_known_end() -> None:
    assert step_line(progress(), Terminal(width=110, unicode=False)).isascii()
    assert step_line(progress(0), Terminal()).startswith("step 120  loss 5.214")


def test_the_bar_reads_without_colour() -> None:
    assert bar(1, 2, 10, Terminal()) == "━━━━━─────"
    assert bar(0, 2, 4, Terminal()) == "────"
    assert bar(2, 2, 4, Terminal()) == "━━━━"
    assert ANSI.sub("", bar(1, 2, 10, Terminal(colour=True))) == "━━━━╸━━━━━"


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ({"kind": "say", "field": "run", "text": "new: runs/stdlib"}, "run      new: runs/stdlib"),
        (
            {"kind": "eval", "set": "held-out", "step": 100, "loss": 5.402, "bits_per_byte": 2.06},
            "eval     step 100 · held-out loss 5.402 · 2.06 bits/byte",
        ),
        (
            {"kind": "event", "event": "restart", "step": 7, "detail": "rank 1 died"},
            "restart  step 7 · rank 1 died",
        ),
        ({"kind": "event", "event": "checkpoint", "step": 7, "detail": {"bytes": 5}}, ""),
        (ROW, ""),
    ],
)
def test_what_scrolls_away_above_the_live_line(message: dict[str, object], line: str) -> None:
    assert heading(message) == line


def test_without_a_terminal_progress_goes_to_stderr_as_lines() -> None:
    shown = screen(Terminal())
    with Console(shown, steps=200) as console:
        console.message({"kind": "say", "field": "plan", "text": "single"})
        console.message(ROW)
        console.message({**ROW, "step": 121})
    lines = shown.err.getvalue().splitlines()
    assert [line[:20] for line in lines] == [re.sub(r"\d", "0", "2026-11-30T12:04:31Z")] * 2 or len(
        lines
    ) == 2
    assert lines[0].endswith(" plan  single")
    assert (
        " train step=120/200 loss=5.2140 grad_norm=0.83 lr=2.40e-04 tokens_per_s=19980 mfu=0.240 " in lines[1]
    )
    assert shown.out.getvalue() == ""


def test_what_a_run_says_does_not_act_on_the_terminal() -> None:
    said = {"kind": "say", "field": "plan", "text": "\x1b[2J\nforged"}
    event = {"kind": "event", "event": "restart", "step": 7, "detail": "\x1b[2J\nforged"}
    shown = screen(Terminal())
    with Console(shown) as console:
        console.message(said)
        console.message(event)
    shown.note("a\x1b[2J\nb")
    shown.warn("a\x1b[2J\nb")
    for line in (*shown.err.getvalue().rstrip("\n").split("\n"), heading(said), heading(event)):
        assert line.isprintable(), line
    assert shown.err.getvalue().count("\n") == 4


def test_quiet_says_nothing_and_json_says_objects_on_stdout() -> None:
    quiet = screen(Terminal(live=True), quiet=True)
    with Console(quiet, steps=200) as console:
        console.message(ROW)
    assert (quiet.out.getvalue(), quiet.err.getvalue()) == ("", "")
    objects = screen(Terminal(live=True), json=True)
    with Console(objects, steps=200) as console:
        console.message({**ROW, "grad_norm": float("nan")})
        console.message({"kind": "say", "field": "plan", "text": "single"})
    rows = [json.loads(line) for line in objects.out.getvalue().splitlines()]
    assert [(r["schema"], r["command"], r["kind"]) for r in rows] == [
        (1, "train", "train"),
        (1, "train", "say"),
    ]
    assert rows[0]["grad_norm"] is None
    assert objects.err.getvalue() == ""


@pytest.mark.parametrize(("color", "painted"), [("auto", True), ("never", False)])
def test_live_on_a_terminal(color: str, painted: bool) -> None:
    code, shown = on_terminal(RUN.format(json=False, color=color, live=True))
    assert code == 0, shown
    text = ANSI.sub("", shown)
    assert "plan     single · predicts 0.41 s a step" in text
    assert "step 4/4 " in text
    assert "0:00 left" in text
    assert "printed by the user's model" in text
    assert "eval     step 4 · held-out loss 5.402 · 2.06 bits/byte" in text
    assert "step=4" not in text
    assert bool(re.search(r"\x1b\[[0-9;]*m", shown)) is painted


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"CI": "true"}])
def test_lines_on_a_terminal_that_is_not_live(variables: dict[str, str]) -> None:
    code, shown = on_terminal(RUN.format(json=False, color="auto", live=False), **variables)
    assert code == 0, shown
    assert [m[1] for m in re.finditer(r"train step=(\d)/4", shown)] == ["1", "2", "4"]
    assert "━" not in shown
    assert "\x1b" not in shown


def test_breakpoint_gives_the_terminal_back() -> None:
    code, shown = on_terminal(
        """
import sys
from paceline.cli.console import Console
from paceline.cli.screen import open_screen
before = sys.breakpointhook
with Console(open_screen("train", json=False, quiet=False, verbose=False, color="auto"), steps=4) as console:
    assert sys.breakpointhook is not before
    sys.breakpointhook = console._live._breakpoint
    console._live._hook = lambda: print("the debugger has", type(sys.stdout).__name__)
    breakpoint()
    console.message({"kind": "train", "step": 1, "loss": 5.0})
assert not console._live.running
"""
    )
    assert code == 0, shown
    assert "the debugger has TextIOWrapper" in shown
    assert "train step=1/4 loss=5.0000" in shown

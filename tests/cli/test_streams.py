"""stdout and stderr that are closed, full, or whose reader has left: no traceback, and the right code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.console import Console
from paceline.cli.screen import Reply, Screen
from paceline.cli.streams import StdoutLost
from paceline.cli.terminal import Terminal
from tests.cli.shell import environment, on_terminal

COMMANDS = (
    "runs",
    "job keys",
    "plan nope.toml",
    "plan nope.toml --json",
    "--help",
    "plan --help",
    "--version",
    "",
)


def shell(here: Path, line: str) -> tuple[int, str]:
    """Exit code of ``paceline …`` in a shell line, and what it said on stderr."""
    done = subprocess.run(
        ["bash", "-c", line.replace("paceline", f"{sys.executable} -m paceline")],
        cwd=here,
        env=environment(PACELINE_CACHE=str(here / "cache")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "a fault in Paceline" not in done.stderr + done.stdout
    assert "Exception ignored" not in done.stderr, done.stderr
    assert not (here / "cache" / "faults").exists()
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_stream_is_as_one_to_nowhere(tmp_path: Path, command: str) -> None:
    code, _ = shell(tmp_path, f"paceline {command} > /dev/null")
    assert [
        shell(tmp_path, f"paceline {command} {closed}")[0] for closed in (">&-", "2>&-", ">&- 2>&- <&-")
    ] == [code] * 3


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "plan nope.toml"])
def test_a_full_disk_ends_a_command_with_55_and_the_reason(tmp_path: Path, command: str) -> None:
    code, said = shell(tmp_path, f"paceline {command} > /dev/full")
    assert code == 55, said
    assert said.startswith("error  the result cannot be written\n  seen     stdout: No space left on device")


def test_a_full_stderr_loses_words_and_nothing_else(tmp_path: Path) -> None:
    assert shell(tmp_path, "paceline plan nope.toml 2> /dev/full")[0] == 2
    assert shell(tmp_path, "paceline plan nope.toml > /dev/full 2>&1")[0] == 2
    assert shell(tmp_path, "paceline runs 2> /dev/full")[0] == 0


@pytest.mark.parametrize("command", ["job keys", "--help", "job schema", "plan --help"])
def test_a_reader_that_leaves_ends_a_command_with_141(tmp_path: Path, command: str) -> None:
    code, said = shell(tmp_path, f"(sleep 2; paceline {command}) | true; exit ${{PIPESTATUS[0]}}")
    assert (code, said) == (141, "")


class Gone(io.StringIO):
    """A stream whose reader leaves after ``lines`` writes."""

    def __init__(self, lines: int = 1, error: type[OSError] = BrokenPipeError) -> None:
        super().__init__()
        self.left, self.error, self.tried = lines, error, 0

    def flush(self) -> None:
        self.tried += 1
        if self.tried > self.left:
            raise self.error(32, "Broken pipe")


def screen_on(out: io.StringIO, err: io.StringIO, *, json: bool) -> Screen:
    return Screen("train", json=json, terminal=Terminal(), out=out, err=err)


@pytest.mark.parametrize("error", [BrokenPipeError, OSError])
@pytest.mark.parametrize("json_", [True, False])
def test_a_run_outlives_its_readers(json_: bool, error: type[OSError]) -> None:
    out, err = Gone(1, error), Gone(1, error)
    shown = screen_on(out, err, json=json_)
    with Console(shown, steps=9, every=("steps", 1)) as console:
        for step in range(1, 10):
            console.message({"kind": "train", "step": step, "loss": 1.0})
    assert shown.finish(Reply({"run": "x"}, "done", 0)) == 0
    watched = out if json_ else err
    assert watched.tried == 2, "it is not tried again"
    assert json.loads(out.getvalue().splitlines()[0])["step"] == 1 if json_ else True


def test_any_other_command_is_for_its_reader() -> None:
    shown = screen_on(Gone(0), io.StringIO(), json=False)
    with pytest.raises(StdoutLost):
        shown.finish(Reply({}, "text"))


def test_the_live_line_on_a_terminal_that_goes_away() -> None:
    """A closed terminal gives EIO; rich writes from a thread of its own."""
    code, shown = on_terminal(
        """
import os, sys, time
from paceline.cli.console import Console
from paceline.cli.screen import open_screen
screen = open_screen("train", json=False, quiet=False, verbose=False, color="auto")
log = os.dup(1)
with Console(screen, steps=4) as console:
    console.message({"kind": "train", "step": 1, "loss": 6.0})
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 2)
    for step in range(2, 5):
        console.message({"kind": "say", "field": "plan", "text": "single"})
        console.message({"kind": "train", "step": step, "loss": 6.0})
        time.sleep(0.3)
os.write(log, b"to the end")
"""
    )
    assert code == 0, shown
    assert "to the end" in shown
    assert "Traceback" not in shown


def test_a_training_whose_reader_has_left_is_done(tmp_path: Path) -> None:
    """The real thing, as `train --json | head -1`."""
    from tests.api.measured import plant
    from tests.flow.corpus import write_job

    write_job(tmp_path)
    plant(tmp_path / "cache")
    line = "paceline train job.toml --layout single,mbs=3 --set train.steps=3 --json | head -n 1; exit ${PIPESTATUS[0]}"
    assert shell(tmp_path, line)[0] == 0
    status = json.loads((tmp_path / "runs" / "job" / "status.json").read_text())
    assert (status["state"], status["step"], status["exit_code"]) == ("done", 3, 0)
    assert os.path.isfile(tmp_path / "runs" / "job" / "report.html")

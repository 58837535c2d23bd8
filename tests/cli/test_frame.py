"""How commands end: streams apart, one JSON object, errors in one form, faults explained, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.cli import frame
from paceline.cli.screen import Reply, Screen, to_json
from paceline.ledger.folder import create
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.status import Status
from tests.cli.shell import Done, environment, in_process, on_terminal, paceline

ENVELOPE = {"schema", "command", "ok", "exit_code", "error", "result"}


def test_the_result_is_on_stdout_and_errors_are_on_stderr(tmp_path: Path) -> None:
    fine = paceline("runs", cwd=tmp_path)
    assert (fine.code, fine.err) == (0, "")
    assert fine.out.startswith("no runs under runs/ yet")
    wrong = paceline("logs", "nothing", cwd=tmp_path)
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.startswith("error  RUN: no run 'nothing'\n")


def test_json_is_one_object_whatever_happens(tmp_path: Path) -> None:
    fine = paceline("runs", "--json", cwd=tmp_path)
    assert fine.object == {
        "schema": 1, "command": "runs", "ok": True, "exit_code": 0, "error": None, "result": [],
    }  # fmt: skip
    wrong = paceline("logs", "nothing", "--json", cwd=tmp_path)
    assert set(wrong.object) == ENVELOPE
    assert (wrong.code, wrong.err) == (2, "")
    assert {"message", "exit_code", "key", "seen", "rule", "allowed", "use"} <= set(wrong.object["error"])
    assert wrong.object["result"] is None


@pytest.mark.parametrize(
    "first", [("--json", "runs"), ("runs", "--json"), ("--color", "never", "--json", "runs")]
)
def test_the_common_options_may_come_first(
    first: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(capsys, *first).object["command"] == "runs"


def test_an_option_between_a_section_and_its_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    done = in_process(capsys, "runs", "--json", "stop", "last")
    assert done.code == 2
    assert "options come after `paceline runs stop`" in done.out


ERRORS = {
    ("plan",): """\
error  JOB is missing
  seen     paceline plan
  rule     `paceline plan` needs JOB
  use      paceline plan JOB                                                                  exit 2
""",
    ("train", "job.toml", "--resum"): """\
error  --resum is not an option of `paceline train`
  seen     paceline train job.toml --resum
  rule     options are strict, as keys are
  use      paceline train --resume                                                            exit 2
""",
    ("fit", "job.toml"): """\
error  fit is not a command of `paceline`
  seen     fit
  use      paceline train                                                                     exit 2
""",
    ("checkpoint", "ls"): """\
error  ls is not a command of `paceline checkpoint`
  seen     ls
  use      paceline checkpoint list                                                           exit 2
""",
    ("claim", "job.toml"): """\
error  `paceline claim` is not in this version
  seen     `paceline claim`
  rule     it arrives with capability 05 (accounting); until then it is refused
  use      paceline plan job.toml says whether distributing should pay                        exit 2
""",
}


@pytest.mark.parametrize("argv", ERRORS, ids=" ".join)
def test_the_form_of_errors(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("paceline.api.surroundings.terminal_variables", lambda: {"COLUMNS": "100"})
    done = in_process(capsys, *argv)
    assert (done.code, done.out) == (2, "")
    assert done.err == ERRORS[argv]


@pytest.mark.parametrize(
    "words", [("--top", "0"), ("--top", "many"), ("--color", "red"), ("--what-if", "devices")]
)
def test_wrong_values_name_their_option(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    job = tmp_path / "job.toml"
    job.write_text('data.train = "*.txt"\n')
    done = in_process(capsys, "plan", str(job), *words)
    assert done.code == 2
    assert done.out == ""
    assert words[0] in done.err or words[1] in done.err


def test_a_fault_asks_for_a_report_and_leaves_its_traceback_in_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(root: object = None) -> list[object]:
        raise ZeroDivisionError("three\nlines\nof text")

    monkeypatch.setattr("paceline.api.runs.runs", broken)
    monkeypatch.setattr("paceline.api.surroundings.cache_folder", lambda: tmp_path)
    done = in_process(capsys, "runs")
    assert done.code == Exit.FAULT
    assert done.err.startswith("error  a fault in Paceline: ZeroDivisionError: three\n")
    assert "Traceback" not in done.err + done.out
    assert "report it" in done.err
    (log,) = tmp_path.glob("faults/*.log")
    assert str(log) in done.err
    assert "ZeroDivisionError" in log.read_text()
    assert "command runs" in log.read_text()


def test_a_fault_is_explained_even_when_no_log_can_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("paceline.api.surroundings.cache_folder", lambda: tmp_path / "file")
    monkeypatch.setattr("paceline.api.runs.runs", lambda root=None: 1 / 0)
    done = in_process(capsys, "runs", "--json")
    assert done.code == Exit.FAULT
    assert done.object["error"]["seen"] == "the traceback could not be written to a log"


@pytest.mark.parametrize(
    ("raised", "code"), [(KeyboardInterrupt(), 130), (Refused("no", exit_code=54), 54), (ValueError("x"), 1)]
)
def test_every_way_to_end_has_its_code(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("paceline.api.surroundings.cache_folder", lambda: tmp_path)

    def work() -> int:
        raise raised

    assert frame.guarded(Screen(quiet=True), work) == code


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m paceline job keys | head -n 1",
        shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) <= 1


@pytest.mark.parametrize(("code", "by"), [(130, "Ctrl-C"), (143, "SIGTERM")])
def test_the_second_signal_is_not_silent(code: int, by: str, capsys: pytest.CaptureFixture[str]) -> None:
    def leave() -> int:
        raise SystemExit(code)

    assert frame.guarded(Screen("train"), leave) == code
    assert (
        f"stopped  at once by {by}: the last verified checkpoint stands · exit {code}"
        in capsys.readouterr().err
    )


def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    folder = create(tmp_path / "runs", "one")
    Status(state="running", step=1, steps=9).write(folder.status)
    folder.console_log.write_text("first line\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "paceline", "logs", "one", "-f"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "first line\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("variables", "flags", "painted"),
    [
        ({}, (), False),
        ({"FORCE_COLOR": "1"}, (), True),
        ({"FORCE_COLOR": "0"}, (), False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, (), False),
        ({"NO_COLOR": "1"}, ("--color", "always"), True),
    ],
)
def test_colour_of_errors_without_a_terminal(
    variables: dict[str, str], flags: tuple[str, ...], painted: bool, tmp_path: Path
) -> None:
    done = paceline("logs", "nothing", *flags, cwd=tmp_path, **variables)
    assert ("\x1b[" in done.err) is painted
    assert "error" in done.err


def test_colour_on_a_terminal(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['paceline', 'logs', 'nothing']; from paceline.__main__ import main; main()"
    )
    ended, shown = on_terminal(code, cwd=tmp_path)
    assert ended == 2
    assert shown.startswith("\x1b[1;31merror\x1b[0m")


def test_a_terminal_without_utf8_is_told_in_ascii(tmp_path: Path) -> None:
    done = paceline("logs", "nothing", cwd=tmp_path, PYTHONUTF8="0", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.code == 2
    assert done.err.isascii()
    assert paceline("--help", PYTHONUTF8="0", PYTHONIOENCODING="ascii", LC_ALL="C").code == 0


def test_json_has_no_nan() -> None:
    assert to_json({"a": [float("nan"), 1.5], "p": Path("x")}) == '{"a": [null, 1.5], "p": "x"}'


def test_a_reply_ends_with_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    code = Screen("train").finish(Reply({"step": 3}, "stopped  after step 3", 50))
    assert Done(code, *capsys.readouterr()) == Done(50, "stopped  after step 3\n", "")


@pytest.mark.parametrize(
    "argv",
    [
        ("plan", "\x1b[2J\nerror  forged.toml"),
        ("plan", "x", "--set", "tr\x1b[31main.steps\nuse  rm=1"),
        ("runs", "\x1b]0;title\x07\nseen"),
        ("plan", "--\x1b[2Jx"),
        ("job", "keys", "\x1b[2J\n\nx"),
        ("cluster", "show", "8x\x1b[2J\nuse"),
        ("train", "x.toml", "--name", "\x1b[2J\nn"),
    ],
)
def test_no_word_of_the_user_acts_on_the_terminal(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    done = in_process(capsys, *argv)
    assert done.code == 2
    first, *rest = done.err.rstrip("\n").split("\n")
    assert first.startswith("error  ")
    assert all(line.startswith("  ") for line in rest), done.err
    assert all(line.isprintable() for line in (first, *rest))

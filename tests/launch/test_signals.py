"""Ctrl-C and SIGTERM against a launcher that is a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.launch.signals import Stopper

Script = subprocess.Popen[str]


class Launched:
    """A running ``tests.launch.script``, in a session of its own so that a signal can go to the whole
    group."""

    def __init__(self, logs: Path, case: str, world: int, payload: dict[str, object]) -> None:
        arguments = [str(logs), case, str(world), json.dumps(payload)]
        self.process: Script = subprocess.Popen(
            [sys.executable, "-m", "tests.launch.script", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self._out = self.process.stdout
        self._out.readline()
        self.pids = [self._pid() for _ in range(world)]

    def _pid(self) -> int:
        line = self._out.readline()
        assert line.startswith("pid "), line + self._out.read()
        return int(line.split()[1])

    def end(self) -> tuple[int, str]:
        """Exit code, and what it printed after the pids."""
        text = self._out.read()
        return self.process.wait(60), text.strip()

    def alive(self) -> list[int]:
        return [pid for pid in self.pids if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[list[Launched]]:
    started: list[Launched] = []
    yield started
    for one in started:
        try:
            os.killpg(one.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        one.process.wait(10)


def test_ctrl_c_reaches_the_group_and_stops_the_ranks_in_order(
    launched: list[Launched], tmp_path: Path
) -> None:
    one = Launched(tmp_path, "until_stopped", 2, {})
    launched.append(one)
    os.killpg(one.process.pid, signal.SIGINT)  # as a terminal does: launcher, forkserver and ranks get it
    code, text = one.end()
    assert text == 'results [{"reason": "SIGINT"}, {"reason": "SIGINT"}]'
    assert code == 0
    assert not one.alive()


def test_sigterm_stops_the_ranks_in_order(launched: list[Launched], tmp_path: Path) -> None:
    one = Launched(tmp_path, "until_stopped", 2, {})
    launched.append(one)
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == (0, 'results [{"reason": "SIGTERM"}, {"reason": "SIGTERM"}]')


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("world", [1, 2])
def test_the_second_signal_leaves_at_once(
    launched: list[Launched], tmp_path: Path, number: signal.Signals, code: int, world: int
) -> None:
    one = Launched(tmp_path, "until_stopped", world, {"deaf": True})  # its ranks never come to an end
    launched.append(one)
    one.process.send_signal(number)
    time.sleep(0.5)
    assert one.process.poll() is None
    begin = time.monotonic()
    one.process.send_signal(number)
    assert one.end()[0] == code
    assert time.monotonic() - begin < 10
    assert not one.alive()


def test_one_rank_in_the_calling_process_stops_after_its_step(
    launched: list[Launched], tmp_path: Path
) -> None:
    one = Launched(tmp_path, "until_stopped", 1, {})
    launched.append(one)
    one.process.send_signal(signal.SIGINT)
    assert one.end() == (0, 'results [{"reason": "SIGINT"}]')


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Stopper() as stopper:
        assert signal.getsignal(signal.SIGINT) != before[0]
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopper() == "SIGTERM"
        with pytest.raises(SystemExit) as caught:
            os.kill(os.getpid(), signal.SIGINT)
        assert caught.value.code == 130
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_one_held_around_several_launches_keeps_its_reason() -> None:
    with Stopper() as outer:
        with Stopper(outer) as first:
            os.kill(os.getpid(), signal.SIGINT)
            assert first() == "SIGINT"
        with Stopper(outer) as second:
            assert second() == "SIGINT"


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stopper() as stopper:
            os.kill(os.getpid(), signal.SIGINT)
            assert stopper() is None
    finally:
        signal.signal(signal.SIGINT, before)

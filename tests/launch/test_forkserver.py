"""Entries by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.launch.forkserver import find
from paceline.launch.local import run_ranks
from tests.launch import cases


def test_an_entry_is_found_by_its_name() -> None:
    assert find("tests.launch.cases:whoami") is cases.whoami


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ("tests.launch.cases", ValueError),
        ("tests.launch.cases:absent", AttributeError),
        ("tests.launch.cases:Emit.__module__", AttributeError),
        ("tests.absent:run", ModuleNotFoundError),
        ("tests.launch.cases:os", TypeError),
    ],
)
def test_a_wrong_name_says_so(entry: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        find(entry)


def test_the_server_has_one_thread_when_ranks_are_forked(tmp_path: Path) -> None:
    """A fork of a process with threads can hang. torch and all that is preloaded with it must not start any."""
    results = run_ranks("tests.launch.cases:server_threads", {}, world_size=1, logs=tmp_path)
    assert results == [{"threads": 1, "preloaded": True}]


CTRL_C_WHILE_IT_IMPORTS = """
import os, pathlib, signal, sys, time
from paceline.launch.forkserver import warm
from paceline.launch.local import run_ranks

if __name__ == "__main__":
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    warm(["tests.launch.cases"])
    time.sleep(0.5)
    os.killpg(0, signal.SIGINT)  # as a terminal does
    ranks = run_ranks("tests.launch.cases:server_threads", {}, world_size=1, logs=pathlib.Path(sys.argv[1]))
    print(len(heard), len(ranks))
"""


def test_ctrl_c_while_the_server_imports_is_the_callers_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CTRL_C_WHILE_IT_IMPORTS, str(tmp_path)]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("1 1", "", 0)


LEFT_BEHIND = """
from multiprocessing import resource_tracker
from paceline.launch.forkserver import warm

if __name__ == "__main__":
    warm()
    resource_tracker.register("/paceline-was-killed", "semaphore")
"""


def test_what_a_killed_rank_leaves_is_no_warning() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True, timeout=120)
    assert "leaked" not in done.stderr

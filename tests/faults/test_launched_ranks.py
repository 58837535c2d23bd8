"""Faults planted by rank and step in ranks that the launcher started; each is asserted to have struck."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from paceline.launch.local import rank_log, run_ranks
from paceline.ledger.outcome import Failed, PacelineError
from tests.launch.test_signals import Launched, is_running, launched  # noqa: F401 (a fixture)

CASES = "tests.launch.cases"


def _run(tmp_path: Path, world: int = 3, **payload: Any) -> tuple[PacelineError, float]:
    """The error of a run, and the seconds from the moment when all had joined."""
    joined: list[float] = []
    limits = {name: payload.pop(name) for name in ("timeout_s", "hang_timeout_s") if name in payload}
    with pytest.raises(PacelineError) as caught:
        run_ranks(
            f"{CASES}:collectives",
            payload,
            world_size=world,
            logs=tmp_path,
            on_message=lambda rank, row: joined.append(time.monotonic()),
            **limits,
        )
    return caught.value, time.monotonic() - (joined[-1] if joined else 0.0)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_rank_is_the_cause_and_ends_all_at_once(tmp_path: Path, rank: int) -> None:
    error, seconds = _run(tmp_path, steps=10_000, at=3, rank=rank, how="kill")
    assert error.exit_code == 58
    assert f"rank {rank} on " in error.message
    assert "SIGKILL" in error.message
    assert seconds < 5  # half a second on a machine of one's own


def test_an_exception_is_the_cause_and_not_the_peers_that_lost_it(tmp_path: Path) -> None:
    error, _ = _run(tmp_path, steps=10_000, at=3, rank=1, how="raise")
    assert (error.exit_code, error.message.split(" raised ")[1]) == (1, "ValueError: planted")
    assert error.message.startswith("rank 1 on ")


@pytest.mark.drill(5)
@pytest.mark.parametrize("how", ["sleep", "freeze"])
def test_a_hang_names_the_late_rank_the_collective_and_its_number(tmp_path: Path, how: str) -> None:
    error, seconds = _run(tmp_path, steps=10, at=3, rank=1, how=how, hang_timeout_s=4.0)
    assert isinstance(error, Failed)
    assert error.exit_code == 31
    assert error.message == "collective hung: all_reduce #3 on world (0-2), step 3; waiting for rank 1"
    assert error.seen.splitlines() == [
        "rank 1: after all_reduce #2 on world (0-2), step 3",
        "rank 0: inside all_reduce #3 on world (0-2), step 3",
        "rank 2: inside all_reduce #3 on world (0-2), step 3",
    ]
    assert 3.5 < seconds < 20
    assert "in wait" in rank_log(tmp_path, 0).read_text(), "the stack of a waiting rank is in its log"
    if how == "sleep":
        assert "in collectives" in rank_log(tmp_path, 1).read_text()


def test_a_hang_that_the_ranks_see_first_still_names_who_is_late(tmp_path: Path) -> None:
    error, _ = _run(tmp_path, steps=10, at=3, rank=1, how="sleep", timeout_s=4.0)
    assert error.exit_code == 31
    assert error.message == "a peer did not answer in all_reduce #3 on world (0-2)"
    assert "waiting for rank 1" in error.seen


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_does_not_come_is_named(tmp_path: Path, absent: int) -> None:
    error, _ = _run(tmp_path, absent=absent, timeout_s=3.0)
    assert error.exit_code == 30
    assert error.message == f"rank {absent} did not come to the meeting"


@pytest.mark.drill(14)
def test_ranks_that_send_different_sizes_disagree(tmp_path: Path) -> None:
    """gloo aborts the process and says why in the log only."""
    with pytest.raises(Failed, match=r"ranks disagree in all_reduce #0 on world \(0,1\)") as caught:
        run_ranks(f"{CASES}:wrong_size", {}, world_size=2, logs=tmp_path)
    assert caught.value.exit_code == 32
    assert "op.preamble.length <= op.nbytes" in caught.value.seen


def test_after_a_kill_the_next_attempt_starts_and_ends(tmp_path: Path) -> None:
    error, _ = _run(tmp_path, steps=10_000, at=3, rank=2, how="kill")
    assert error.exit_code == 58
    results = run_ranks(f"{CASES}:collectives", {"steps": 3}, world_size=3, logs=tmp_path, attempt=1)
    assert [result["sum"] for result in results] == [3.0] * 3
    assert rank_log(tmp_path, 2).read_text().count("=== attempt") == 2


@pytest.mark.drill(2)
def test_a_killed_launcher_leaves_no_orphan(launched: list[Launched], tmp_path: Path) -> None:  # noqa: F811
    """The ranks are inside collectives and the forkserver is alive; nobody tells them but the kernel."""
    one = Launched(tmp_path, "collectives", 3, {"steps": 100_000, "pause": 0.01})
    launched.append(one)
    servers = {_parent(pid) for pid in one.pids}
    assert len(servers) == 1
    assert all(is_running(pid) for pid in [*one.pids, *servers])
    os.kill(one.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while (left := [pid for pid in [*one.pids, *servers] if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@pytest.mark.drill(2)
def test_a_killed_launcher_takes_frozen_ranks_with_it(launched: list[Launched], tmp_path: Path) -> None:  # noqa: F811
    one = Launched(tmp_path, "until_stopped", 2, {})
    launched.append(one)
    os.kill(one.pids[0], signal.SIGSTOP)
    os.kill(one.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while one.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not one.alive()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

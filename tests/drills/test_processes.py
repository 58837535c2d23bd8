"""D01-D12: ranks and the launcher die, hang, fail and are late."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

import paceline as pl
from paceline.ledger.accounts import read_ranks, split_waits, step_accounts
from paceline.ledger.outcome import Exit, PacelineError
from paceline.recover import checkpoint
from tests.drills.small import (
    STEPS,
    Command,
    assert_same_bits,
    children_of,
    events,
    fired,
    gone,
    last_step,
    pids_of,
    plant,
    ports,
    seconds_lost,
    sockets_of,
    steps_lost,
    train,
    wait_for,
    write_tiny,
)
from tests.launch.test_signals import is_running

Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, cache: str) -> pl.Run:
    """The run without a fault."""
    return train(write_tiny(tmp_path_factory.mktemp("straight")), "straight")


def restarted(job: Path, straight: pl.Run, record: Record, signal_name: str, rank: int) -> None:
    """One restart after step 11, within 5 s, to the same bits; what it cost goes into the table."""
    seen: list[float] = []
    run = train(
        job, "struck", on_row=lambda row: seen.append(time.time()) if row.get("event") == "restart" else None
    )
    (strike,) = fired(job)
    (restart,) = events(run, "restart")
    assert seen[0] - strike["unix_s"] < 5
    assert restart["step"] == 11, "every finished step is there"
    assert restart["detail"]["from"] == "memory, after step 11"
    assert f"rank {rank} on " in restart["detail"]["cause"]
    assert signal_name in restart["detail"]["cause"]
    assert not is_running(strike["pid"])
    assert run.state == "done"
    assert_same_bits(run, straight)
    assert steps_lost(run.path) == 1, "the one that broke"
    record("steps_lost", 1)
    record("seconds_lost", seconds_lost(run.path, strike))


@pytest.mark.parametrize(
    ("how", "name", "rank"),
    [
        pytest.param("kill", "SIGKILL", 1, marks=pytest.mark.drill(1)),
        pytest.param("kill", "SIGKILL", 0, marks=pytest.mark.drill(2)),
        pytest.param("segfault", "SIGSEGV", 1, marks=pytest.mark.drill(8)),
    ],
)
def test_a_rank_that_dies_in_a_step_costs_its_step_and_no_bit(
    how: str, name: str, rank: int, straight: pl.Run, tmp_path: Path, record_property: Record
) -> None:
    job = write_tiny(tmp_path)
    plant(job, how, rank=rank)
    restarted(job, straight, record_property, name, rank)


@pytest.mark.drill(2)
def test_a_killed_launcher_leaves_no_process_and_the_next_launch_resumes(
    straight: pl.Run, tmp_path: Path, record_property: Record
) -> None:
    job = write_tiny(tmp_path)
    plant(job, "sleep", step=1, every_step=True, seconds=0.03)  # so that the kill falls into a step
    run = tmp_path / "runs" / "cut"
    with Command(job, "train", "tiny.toml", "--layout", "dp=2", "--name", "cut") as one:
        wait_for(lambda: last_step(run) >= 12)
        below = children_of(one.process.pid)
        assert set(pids_of(run)) < set(below), "more than the ranks: the forkserver, and those that write"
        sockets = sockets_of([one.process.pid, *below])
        assert ports(sockets), "the meeting has a port"
        one.signal(signal.SIGKILL)
        assert gone(below) == []
        assert ports(sockets) == []
    was_at = last_step(run)
    assert was_at < STEPS
    (tmp_path / "fault.json").unlink()
    resumed = train(job, "cut", resume=True)
    assert resumed.path == run
    assert resumed.state == "done"
    assert_same_bits(resumed, straight)
    record_property("steps_lost", steps_lost(run))


@pytest.mark.drill(3)
@pytest.mark.parametrize("to", ["the launcher", "every process"])
def test_a_preempted_run_saves_the_step_it_is_in(to: str, straight: pl.Run, tmp_path: Path) -> None:
    """A batch system sends its notice to the launcher, or to every process of the job."""
    job = write_tiny(tmp_path)
    plant(job, "sleep", step=1, every_step=True, seconds=0.05)
    run = tmp_path / "runs" / "notice"
    with Command(job, "train", "tiny.toml", "--layout", "dp=2", "--name", "notice") as one:
        wait_for(lambda: last_step(run) >= 13)
        if to == "the launcher":
            one.signal(signal.SIGTERM)
        else:
            os.killpg(one.process.pid, signal.SIGTERM)
        code, _, err = one.end(20)
    assert code == Exit.PREEMPTED, err
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    assert found.name == f"step-{last_step(run):08d}"
    assert 13 <= last_step(run) <= 16
    assert checkpoint.verify(found) == []
    (tmp_path / "fault.json").unlink()
    assert_same_bits(train(job, "notice", resume=True), straight)


@pytest.mark.slow_drill
@pytest.mark.drill(3)
def test_a_grace_that_is_too_short_leaves_the_last_save(tmp_path: Path, cache: str) -> None:
    """The save after the notice takes 0.2 s a file and more; the kill comes before it ends."""
    job = write_tiny(tmp_path)
    plant(job, "slow_save", rank=0, step=1, seconds=0.2)
    run = tmp_path / "runs" / "short"
    with Command(job, "train", "tiny.toml", "--layout", "dp=2", "--name", "short") as one:
        wait_for(lambda: events(run, "checkpoint") if (run / "metrics.jsonl").exists() else None)
        below = children_of(one.process.pid)
        one.signal(signal.SIGTERM)
        time.sleep(0.3)
        one.signal(signal.SIGKILL)
        assert gone(below) == []
    assert [p for p in (run / "checkpoints").iterdir() if p.name.startswith(".step-")], (
        "the kill fell into a save"
    )
    assert fired(job)
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    assert checkpoint.verify(found) == []


@pytest.mark.slow_drill
@pytest.mark.drill(4)
def test_two_notices_during_a_save_never_leave_half_of_one(tmp_path: Path, cache: str) -> None:
    """The second signal leaves at once, 0.2 s after the first; the writer is in the middle of a save."""
    job = write_tiny(tmp_path)
    plant(job, "slow_save", rank=0, step=1, seconds=0.2)
    run = tmp_path / "runs" / "twice"
    with Command(job, "train", "tiny.toml", "--layout", "dp=2", "--name", "twice") as one:
        wait_for(lambda: (run / "checkpoints" / "latest").exists())
        wait_for(lambda: [p for p in (run / "checkpoints").iterdir() if p.name.startswith(".step-")])
        below = children_of(one.process.pid)
        one.signal(signal.SIGTERM)
        time.sleep(0.2)
        hidden = (
            run / "checkpoints"
        ).glob  # between two saves there is none: the signal has to fall into one
        wait_for(lambda: list(hidden(".step-*")), 20)
        under_way = {p.name[:14] for p in hidden(".step-*")}
        assert len(under_way) == 1, "one save, and it is not done"
        one.signal(signal.SIGTERM)
        code, _, err = one.end(10)
        assert code == 143, err
        assert gone(below) == []
    assert fired(job)
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    assert checkpoint.verify(found) == []
    (tmp_path / "fault.json").unlink()
    resumed = train(job, "twice", resume=True)
    assert resumed.state == "done"
    assert [p.name for p in (run / "checkpoints").iterdir() if p.name.startswith(".")] == []


@pytest.mark.drill(6)
def test_a_rank_that_stands_still_for_half_the_limit_is_late_and_not_hung(tmp_path: Path, cache: str) -> None:
    stopped_s = 1.5
    job = write_tiny(tmp_path, restart__hang_timeout='"3s"', train__steps="12")
    plant(job, "freeze", step=6)
    waited: list[float] = []

    def thaw() -> None:
        wait_for(lambda: (tmp_path / "fired").exists(), 30)
        (strike,) = fired(job)
        time.sleep(max(0.0, strike["unix_s"] + stopped_s - time.time()))
        waited.append(time.time() - strike["unix_s"])
        os.kill(strike["pid"], signal.SIGCONT)

    helper = Thread(target=thaw)
    helper.start()
    run = train(job, "late")
    helper.join()
    assert waited
    assert run.state == "done"
    assert events(run, "restart") == []
    accounts = split_waits(read_ranks(run.folder))
    assert accounts.latest_rank == 1
    assert step_accounts(accounts.ranks[0])[6].get(("idle", "peer"), 0.0) > 0.9 * stopped_s


@pytest.mark.drill(5)
def test_a_rank_that_stands_still_for_ever_is_ended_and_named(
    straight: pl.Run, tmp_path: Path, record_property: Record
) -> None:
    job = write_tiny(tmp_path, restart__hang_timeout='"3s"')
    plant(job, "freeze")
    run = train(job, "hung")
    (strike,) = fired(job)
    (restart,) = events(run, "restart")
    assert "in all_reduce #" in restart["detail"]["cause"] or ": all_reduce #" in restart["detail"]["cause"]
    assert "rank 1" in restart["detail"]["cause"]
    assert not is_running(strike["pid"]), "it was stopped: only SIGKILL ends it"
    assert_same_bits(run, straight)
    record_property("steps_lost", steps_lost(run.path))
    record_property("seconds_lost", seconds_lost(run.path, strike))


@pytest.mark.drill(12)
def test_a_rank_that_holds_its_interpreter_is_found_from_outside(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path, restart__hang_timeout='"3s"', train__steps="8", restart__max="0")
    plant(job, "gil", step=6)
    with pytest.raises(PacelineError) as caught:
        train(job, "held")
    (strike,) = fired(job)
    assert caught.value.exit_code == Exit.HUNG
    assert "waiting for rank 1" in caught.value.message + caught.value.seen
    assert time.time() - strike["unix_s"] < 10
    assert not is_running(strike["pid"])


@pytest.mark.drill(7)
def test_an_exception_on_one_rank_is_told_once_and_as_the_cause(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path)
    plant(job, "raise", step=7)
    with Command(job, "train", "tiny.toml", "--layout", "dp=3", "--name", "raised") as one:
        code, out, err = one.end()
        ended_s = time.time()
    (strike,) = fired(job)
    assert ended_s - strike["unix_s"] < 5
    assert code == Exit.FAULT
    assert err.count("ValueError: planted in the loss") <= 2, "its message, and what was seen"
    assert err.count("rank 1 on ") == 1
    assert "lost a peer" not in out + err
    logs = tmp_path / "runs" / "raised" / "logs"
    assert "planted in the loss" in (logs / "rank-00001.log").read_text()
    assert "planted in the loss" not in (logs / "rank-00000.log").read_text()


@pytest.mark.drill(9)
def test_memory_that_one_rank_lacks_is_told_with_its_peak_and_a_layout(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path)
    plant(job, "memory", step=3)
    with pytest.raises(PacelineError) as caught:
        train(job, "starved")
    assert fired(job)
    error = caught.value
    assert error.exit_code == Exit.DEVICE_MEMORY
    assert "rank 1 ran out of memory" in error.message
    assert "peak" in error.seen
    assert "GiB" in error.seen
    assert "--layout fsdp=" in error.use


@pytest.mark.drill(10)
def test_a_rank_that_dies_at_the_same_step_again_and_again_stops(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path, restart__max="2")
    plant(job, "kill", step=3, always=True)
    with pytest.raises(PacelineError) as caught:
        train(job, "loop")
    assert [one["attempt"] for one in fired(job)] == [0, 1, 2]
    assert caught.value.exit_code == Exit.RESTARTS
    assert "2 restarts without progress" in caught.value.message


@pytest.mark.drill(10)
def test_what_a_program_raises_is_not_tried_again(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path)
    plant(job, "raise", step=3, always=True)
    with pytest.raises(PacelineError) as caught:
        train(job, "raises")
    assert len(fired(job)) == 1
    assert caught.value.exit_code == Exit.FAULT


@pytest.mark.drill(11)
def test_a_slow_rank_is_named_with_the_time_it_costs_and_left_alive(tmp_path: Path, cache: str) -> None:
    slow_s, slow_steps = 0.2, 8
    job = write_tiny(tmp_path, train__steps=str(slow_steps + 2), restart__hang_timeout='"3s"')
    plant(job, "sleep", step=3, every_step=True, seconds=slow_s)
    run = train(job, "slow")
    assert fired(job)
    assert run.state == "done"
    assert events(run, "restart") == []
    accounts = split_waits(read_ranks(run.folder))
    assert accounts.latest_rank == 1
    by_step = step_accounts(accounts.ranks[0])
    idle = sum(by_step[step].get(("idle", "peer"), 0.0) for step in range(3, 3 + slow_steps))
    assert idle == pytest.approx(slow_s * slow_steps, rel=0.15)

"""The status file: fresh, atomic, readable in any condition."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.ledger import process
from paceline.ledger.folder import Heartbeat, Status, create
from tests.ledger.test_spans import FakeClock


def test_it_goes_round_with_schema_and_times(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    written = Status(state="running", step=3, steps=9, layout="fsdp=2").write(path)
    assert Status.read(path) == written
    assert json.loads(path.read_text())["schema"] == 1
    assert written.started_s == written.updated_s > 0
    assert written.pid == os.getpid()
    assert Status(state="done", started_s=5.0).write(path).started_s == 5.0


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"state": "flying"}', '{"step": 3}', '{"state": 5}', "\x00\x01", "[" * 100_000],
)
def test_what_is_not_a_status_reads_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "status.json").write_text(content)
    assert Status.read(tmp_path / "status.json") is None
    assert Status.read(tmp_path / "absent.json") is None


def test_a_status_of_another_version_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    path.write_text(
        json.dumps({"state": "done", "step": "many", "steps": 7, "new_key": 1, "exit_code": True})
    )
    found = Status.read(path)
    assert found is not None
    assert (found.state, found.step, found.steps, found.exit_code, found.pid) == ("done", 0, 7, None, 0)


def test_an_unknown_state_cannot_be_written() -> None:
    with pytest.raises(ValueError):
        Status(state="flying")


def test_a_run_whose_process_is_gone_shows_as_lost(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(30)
    status = Status(state="running", pid=dead.pid).write(tmp_path / "status.json")
    now = time.time()
    assert status.shown_state(now) == "running"  # its heartbeat is fresh
    assert status.shown_state(now + 60) == "lost"
    assert Status(state="running").write(tmp_path / "s").shown_state(now + 600) == "running"  # we live
    assert Status(state="running", process_start="x").write(tmp_path / "s").shown_state(now + 60) == "lost"
    away = Status(state="running", host="elsewhere", updated_s=now)
    assert [away.shown_state(now + s) for s in (60, 600)] == ["running", "lost"]
    assert Status(state="failed", pid=dead.pid).shown_state(now + 600) == "failed"


def test_a_killed_process_of_this_host_is_lost_at_once(tmp_path: Path) -> None:
    """Its start is known and its number is gone or another's: no heartbeat has to grow old."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = process.start_time(child.pid)
    status = Status(state="running", pid=child.pid, process_start=started).write(tmp_path / "status.json")
    assert status.shown_state(status.updated_s + 600) == "running"
    child.kill()
    child.communicate(timeout=30)
    assert status.shown_state(status.updated_s + 0.1) == "running"  # it may only now be named
    assert status.shown_state(status.updated_s + 1) == "lost"
    again = Status(state="running", process_start="of an earlier process").write(tmp_path / "status.json")
    assert again.shown_state(again.updated_s + 1) == "lost", "our number, and another start"
    away = Status(state="running", host="elsewhere", pid=child.pid, process_start=started, updated_s=1000.0)
    assert away.shown_state(1001.0) == "running"


def test_a_run_that_ends_while_it_is_looked_at_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last word may come between the reading of its status and the look for its process."""
    folder = create(tmp_path, "r")
    Status(state="running", process_start="gone").write(folder.status)
    old = json.loads(folder.status.read_text())
    folder.status.write_text(json.dumps({**old, "updated_s": old["updated_s"] - 5}))
    looked = process.is_alive

    def ends(pid: int, started: str = "") -> bool:
        Status(state="done", exit_code=0).write(folder.status)
        return looked(pid, started)

    monkeypatch.setattr(process, "is_alive", ends)
    assert folder.shown_state() == "done"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("started_s", 1e308),
        ("updated_s", float("nan")),
        ("updated_s", -1.0),
        ("step", 10**400),
        ("step", -1),
        ("steps", True),
        ("pid", 10**30),
        ("exit_code", 999),
        ("layout", ["fsdp=2"]),
        ("kind", None),
    ],
)
def test_a_value_out_of_its_range_is_left_out(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "status.json"
    Status(state="running", step=3).write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    found = Status.read(path)
    assert found is not None
    assert getattr(found, name) == getattr(Status(pid=0), name)
    assert found.shown_state() in ("running", "lost")


def test_the_layout_of_each_attempt_is_kept(tmp_path: Path) -> None:
    """A resume starts a status anew (``paceline train --resume --layout``); the run's history goes on."""
    path = tmp_path / "status.json"
    Status(layout="dp=2").write(path)
    heart = Heartbeat(path, every_s=0)
    heart.beat(state="running")
    heart.beat(attempt=1)
    Status(attempt=2, layout="fsdp=2").write(path)
    Heartbeat(path).beat(state="running")
    found = Status.read(path)
    assert found is not None
    assert found.layouts == {"0": "dp=2", "1": "dp=2", "2": "fsdp=2"}
    old = json.loads(path.read_text())
    for damage in ([], {"x": "dp=2"}, {"0": 7}):
        path.write_text(json.dumps({**old, "layouts": damage}))
        found = Status.read(path)
        assert found is not None
        assert found.layouts == {}
    del old["layouts"]  # by an earlier version
    path.write_text(json.dumps(old))
    Status(attempt=3, layout="single").write(path)
    found = Status.read(path)
    assert found is not None
    assert found.layouts == {"2": "fsdp=2", "3": "single"}


def test_the_heart_beats_when_due_and_at_once_for_a_new_state(tmp_path: Path) -> None:
    path, clock = tmp_path / "status.json", FakeClock()
    heart = Heartbeat(path, Status(state="running", steps=100), every_s=10, clock=clock)
    beats = []
    for step in range(1, 31):
        clock.tick(1.0)
        beats.append(heart.beat(step))
    assert [i + 1 for i, beat in enumerate(beats) if beat] == [1, 11, 21]
    assert heart.beat(31, state="stopping")
    found = Status.read(path)
    assert found is not None
    assert (found.step, found.state, found.steps) == (31, "stopping", 100)
    heart.beat(32)
    heart.end("preempted", 50, "saved")
    found = Status.read(path)
    assert found is not None
    assert (found.step, found.state, found.exit_code, found.message) == (32, "preempted", 50, "saved")


def test_a_heartbeat_takes_up_the_status_in_the_folder(tmp_path: Path) -> None:
    Status(state="running", kind="prove", started_s=5.0).write(tmp_path / "status.json")
    assert Heartbeat(tmp_path).status.kind == "prove"


def test_a_process_is_told_from_a_later_one_of_its_number() -> None:
    start = process.start_time(os.getpid())
    assert start
    assert process.is_alive(os.getpid(), start)
    assert not process.is_alive(os.getpid(), start + "0")
    assert not process.is_alive(0)
    assert process.start_time(2**22 + 1) == ""

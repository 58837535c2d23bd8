"""A run read from its folder: state, arrays, stop, checkpoints by name, and leftovers of killed processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import paceline as pl
from paceline.api.leftovers import leftovers
from paceline.api.runs import find_checkpoint, find_runs, stop_asked
from paceline.ledger import process
from paceline.ledger.folder import RunFolder, create
from paceline.ledger.metrics import MetricsWriter
from paceline.ledger.outcome import Exit
from paceline.ledger.status import Status


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = create(tmp_path / "runs", "one")
    Status(state="running", step=2, steps=9, layout="fsdp=2").write(made.status)
    writer = MetricsWriter(made.metrics)
    for step, attempt, loss in ((1, 0, 5.0), (2, 0, 4.0), (2, 1, 3.5)):
        writer.write({"kind": "train", "step": step, "attempt": attempt, "time_s": 1.0, "loss": loss})
    writer.write({"kind": "eval", "step": 2, "attempt": 1, "time_s": 2.0, "set": "held-out", "loss": 3.6})
    writer.close()
    return made


def test_a_run_is_read_from_its_folder(folder: RunFolder) -> None:
    run = pl.Run(folder.path)
    assert (run.name, run.state, run.exit_code, str(run.layout)) == ("one", "running", None, "fsdp=2")
    assert run == pl.Run("ONE", root=folder.path.parent)
    metrics = run.metrics()
    assert isinstance(metrics["loss"], np.ndarray)
    assert metrics["step"].tolist() == [1, 2]
    assert metrics["loss"].tolist() == [5.0, 3.5], "the row with the greatest attempt counts"
    assert run.metrics("eval")["loss"].tolist() == [3.6]
    assert run.last("eval")["loss"] == 3.6
    assert run.checkpoints() == []


def test_runs_lists_the_newest_first(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "c")):
        Status(state="done", started_s=100.0 + number).write(create(tmp_path, name).status)
    assert [run.name for run in pl.runs(tmp_path)] == ["c", "b", "a"]
    assert [run.name for run in find_runs(["[ab]", "c"], tmp_path)] == ["a", "b", "c"]


def test_an_unknown_run_is_refused_with_the_nearest(folder: RunFolder) -> None:
    with pytest.raises(pl.Refused) as caught:
        pl.Run("onee", root=folder.path.parent)
    assert (caught.value.exit_code, caught.value.use) == (2, "one")


def test_stop_asks_and_waits(folder: RunFolder) -> None:
    run = pl.Run(folder.path)
    assert not stop_asked(folder)
    run.stop()
    assert stop_asked(folder)

    def obey() -> None:
        time.sleep(0.2)
        Status(state="preempted", exit_code=50).write(folder.status)

    thread = threading.Thread(target=obey)
    thread.start()
    assert run.wait(30.0) == "preempted"
    thread.join()
    with pytest.raises(pl.Refused) as caught:
        run.stop()
    assert caught.value.seen == "state preempted"


def test_a_checkpoint_that_is_not_there_is_52_with_those_that_are(folder: RunFolder) -> None:
    with pytest.raises(pl.Refused) as caught:
        find_checkpoint(f"{folder.path}@7")
    assert caught.value.exit_code == Exit.NOTHING_TO_RESUME


def test_leftovers_of_killed_processes_are_found(folder: RunFolder) -> None:
    root = folder.path.parent
    assert leftovers(root) == []
    folder.lock.write_text(f"{os.uname().nodename}\n999999\n1\n")
    (folder.checkpoints / ".step-00000003.tmp").mkdir()
    (root / ".gone.deleting").mkdir()
    dead = create(root, "dead")
    Status(state="running", pid=999999, process_start="1").write(dead.status)
    old = json.loads(dead.status.read_text())
    dead.status.write_text(json.dumps({**old, "updated_s": time.time() - 3600}))
    said = {item.path.name: item.says for item in leftovers(root)}
    assert set(said) == {"lock", ".step-00000003.tmp", ".gone.deleting", "dead"}
    assert "its process 999999 is gone" in said["dead"]


def test_a_lock_that_is_held_is_no_leftover(folder: RunFolder) -> None:
    from paceline.ledger.lock import Lock

    with Lock(folder):
        assert leftovers(folder.path.parent) == []


@pytest.mark.parametrize("word", ["one@2", "@2", "last@2"])
def test_what_is_done_to_a_run_is_refused_for_a_checkpoint(folder: RunFolder, word: str) -> None:
    """stop, logs, report, compare and delete take RUN through these two: @STEP is never dropped silently."""
    root = folder.path.parent
    for find in (lambda: pl.Run(word, root=root), lambda: find_runs([word], root)):
        with pytest.raises(pl.Refused) as caught:
            find()
        assert (caught.value.exit_code, caught.value.key) == (2, "RUN")
    assert folder.read_status() is not None


def test_a_killed_run_of_this_host_can_be_stopped_waiting_for_at_once(folder: RunFolder) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    Status(state="running", pid=child.pid, process_start=process.start_time(child.pid)).write(folder.status)
    run = pl.Run(folder.path)
    run.stop()
    child.kill()
    child.communicate(timeout=30)
    since = time.monotonic()
    assert run.wait(30.0) == "lost"
    assert time.monotonic() - since < 5
    with pytest.raises(pl.Refused) as caught:
        run.stop()
    assert caught.value.seen == "state lost"

"""Runs are named, found, listed, copied into and deleted as interface §1 and §6 say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.ledger.folder import (
    Lock,
    RunFolder,
    Status,
    all_runs,
    check_run_name,
    create,
    find,
    find_all,
    newest_of,
    split_step,
)
from paceline.ledger.outcome import Refused


def make(root: Path, name: str, started_s: float, kind: str = "train") -> RunFolder:
    folder = create(root, name)
    Status(state="done", kind=kind, started_s=started_s).write(folder.status)
    return folder


@pytest.mark.drill(47)
def test_names_count_up_and_ignore_case(tmp_path: Path) -> None:
    assert [create(tmp_path, name).name for name in ("lm", "lm", "LM")] == ["lm", "lm-2", "LM-3"]


def test_a_long_name_leaves_room_for_its_number(tmp_path: Path) -> None:
    create(tmp_path, "x" * 80)
    assert create(tmp_path, "x" * 80).name == "x" * 78 + "-2"


@pytest.mark.drill(47)
@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "..", "x.", ".hidden", "-x", "con", "NUL.txt", "last", "é", "x" * 81, "a:b"]
)
def test_an_invalid_name_is_refused_with_a_valid_one(name: str) -> None:
    with pytest.raises(Refused) as refusal:
        check_run_name(name)
    assert refusal.value.exit_code == 2
    assert check_run_name(refusal.value.use.removeprefix("--name "))


@pytest.mark.parametrize("name", ["a", "gpt2.small-lr_1e-4", "fsdp4.zero2-pp2.zbv", "console"])
def test_a_valid_name_stands(name: str) -> None:
    assert check_run_name(name) == name


def test_every_file_lies_where_the_interface_says(tmp_path: Path) -> None:
    f = create(tmp_path, "r")
    assert sorted(os.listdir(f.path)) == sorted(
        ["source", "phases", "ledger", "logs", "checkpoints", "evidence", "traces"]
    )
    relative = [
        str(p.relative_to(f.path))
        for p in (
            f.job_toml,
            f.manifest,
            f.status,
            f.lock,
            f.metrics,
            f.ledger(7),
            f.console_log,
            f.rank_log(12),
        )
    ]
    assert relative == [
        "job.toml",
        "manifest.json",
        "status.json",
        "lock",
        "metrics.jsonl",
        "ledger/rank-00007.jsonl",
        "logs/console.log",
        "logs/rank-00012.log",
    ]


def test_an_unwritable_root_is_refused_with_the_store_code(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused) as refusal:
        create(tmp_path / "file", "r")
    assert refusal.value.exit_code == 55


def test_runs_are_found_by_path_name_case_and_last(tmp_path: Path) -> None:
    old, new = make(tmp_path, "old", 100.0), make(tmp_path, "New", 200.0)
    assert find(old.path, tmp_path / "nowhere").path == old.path
    assert find("old", tmp_path).path == old.path
    assert find("new", tmp_path).path == new.path
    assert find("last", tmp_path).path == new.path
    assert [f.name for f in all_runs(tmp_path)] == ["New", "old"]
    assert split_step("old@200") == ("old", 200)
    assert split_step("old") == ("old", None)


@pytest.mark.parametrize("word", ["old@200", "old@0", "@200", "last@3", "OLD@1"])
def test_a_checkpoint_is_not_a_run(tmp_path: Path, word: str) -> None:
    """`runs delete old@200` must not take all of `old` for one of its checkpoints."""
    folder = make(tmp_path, "old", 100.0)
    for words in (word, str(folder.path) + "@200"):
        for refused in (lambda w: find(w, tmp_path), lambda w: find_all([w], tmp_path)):
            with pytest.raises(Refused) as refusal:
                refused(words)
            assert refusal.value.exit_code == 2
            assert "is a checkpoint, not a run" in refusal.value.message
            assert "@" not in refusal.value.use
    folder.path.rename(tmp_path / "kept@200")
    assert find("kept@200", tmp_path).name == "kept@200", "a folder of that name is the run that it is"


def test_an_unknown_run_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    make(tmp_path, "stdlib", 1.0)
    with pytest.raises(Refused) as refusal:
        find("sdtlib", tmp_path, exit_code=52)
    assert (refusal.value.exit_code, refusal.value.use) == (52, "stdlib")
    with pytest.raises(Refused) as refusal:
        find("last", tmp_path / "empty")
    assert refusal.value.exit_code == 2


def test_a_pattern_names_every_run_that_it_matches_once(tmp_path: Path) -> None:
    for n, name in enumerate(["lr-1", "lr-2", "other"]):
        make(tmp_path, name, float(n + 1))
    assert [f.name for f in find_all(["lr-*", "lr-2", "other"], tmp_path)] == ["lr-1", "lr-2", "other"]
    with pytest.raises(Refused):
        find_all(["x-*"], tmp_path)


def test_the_newest_run_of_a_name_is_the_one_to_resume(tmp_path: Path) -> None:
    make(tmp_path, "lm", 10.0)
    second = make(tmp_path, "lm", 20.0)
    make(tmp_path, "lm-prove", 30.0, kind="prove")
    make(tmp_path, "lm-3", 40.0, kind="prove")
    make(tmp_path, "lm2", 50.0)
    for folder in all_runs(tmp_path):
        folder.job_toml.write_text("")
    make(tmp_path, "lm-9", 60.0)  # died before it had a job
    found = newest_of(tmp_path, "lm")
    assert found is not None
    assert found.path == second.path
    assert newest_of(tmp_path, "none") is None


def test_the_source_keeps_the_job_and_files_of_one_name(tmp_path: Path) -> None:
    for name in ("job.toml", "a/model.py", "b/model.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    folder = create(tmp_path / "runs", "r")
    copies = folder.copy_source(tmp_path / "job.toml", [tmp_path / "a/model.py", tmp_path / "b/model.py"])
    assert [c.name for c in copies] == ["job.toml", "model.py", "b-model.py"]
    assert [c.read_text() for c in copies] == ["job.toml", "a/model.py", "b/model.py"]


def test_disk_use_counts_a_linked_file_once(tmp_path: Path) -> None:
    folder = create(tmp_path, "r")
    (folder.checkpoints / "a").write_bytes(b"x" * 1000)
    os.link(folder.checkpoints / "a", folder.checkpoints / "b")
    (folder.logs / "c").write_bytes(b"x" * 24)
    assert folder.disk_bytes() == 1024


@pytest.mark.drill(34)
def test_a_second_process_is_refused_and_a_dead_holder_recognised(tmp_path: Path) -> None:
    folder = create(tmp_path, "r")
    code = (
        "import sys, time\nfrom paceline.ledger.folder import Lock, RunFolder\n"
        f"Lock(RunFolder({str(folder.path)!r})).acquire()\nprint('held', flush=True)\nsys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Refused) as refusal:
            Lock(folder).acquire()
        assert refusal.value.exit_code == 56
        assert str(holder.pid) in refusal.value.seen
    finally:
        holder.kill()
        holder.wait(10)
        holder.communicate()
    lock = Lock(folder).acquire()
    held = lock.holder()
    assert held is not None
    assert held[1] == os.getpid()
    lock.release()
    assert not folder.lock.exists()


def test_a_lock_that_was_torn_by_a_crash_holds_nobody_off(tmp_path: Path) -> None:
    folder = create(tmp_path, "r")
    for torn in ("", "\n", "\x00" * 40, f"{os.uname().nodename}\n{'9' * 5000}\nx\n"):
        folder.lock.write_text(torn.replace("\x00" * 40, ""))
        assert Lock(folder).is_stale()
        Lock(folder).acquire().release()


@pytest.mark.drill(34)
def test_a_reused_process_number_does_not_hold_the_lock(tmp_path: Path) -> None:
    folder = create(tmp_path, "r")
    with Lock(folder):
        host, pid, _ = folder.lock.read_text().splitlines()
    folder.lock.write_text(f"{host}\n{pid}\nanother start\n")
    Lock(folder).acquire().release()

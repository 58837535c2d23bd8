"""Deleting takes a run and nothing else, on a full disk too."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.ledger import removal
from paceline.ledger.folder import Lock, RunFolder, all_runs, create
from paceline.ledger.outcome import Failed, Refused
from tests.ledger.test_folder import make


def refused(path: Path) -> Refused:
    with pytest.raises(Refused) as refusal:
        RunFolder(path).delete()
    assert refusal.value.exit_code == 2
    return refusal.value


def test_deleting_frees_the_run(tmp_path: Path) -> None:
    folder = make(tmp_path, "r", 1.0)
    (folder.checkpoints / "a").write_bytes(b"x" * 1000)
    (folder.path / "job.toml").write_text("")
    (folder.path / ".DS_Store").write_text("")
    assert folder.delete() > 1000
    assert os.listdir(tmp_path) == []
    create(tmp_path, "unborn").delete()
    assert os.listdir(tmp_path) == []


def a_project(root: Path) -> Path:
    (root / "project").mkdir()
    (root / "project" / "job.toml").write_text("")
    (root / "project" / "precious.py").write_text("")
    return root / "project"


def an_empty_folder(root: Path) -> Path:
    (root / "precious").mkdir()
    return root / "precious"


def a_link(root: Path) -> Path:
    target = make(root / "elsewhere", "r", 1.0)
    (root / "link").symlink_to(target.path)
    return root / "link"


def the_folder_of_runs(root: Path) -> Path:
    outer = make(root, "runs", 1.0)
    make(outer.path, "inner", 2.0)
    return outer.path


def the_folder_above(root: Path) -> Path:
    return make(root, "r", 1.0).logs / ".."


def a_run_with_notes(root: Path) -> Path:
    folder = make(root, "r", 1.0)
    (folder.path / "notes.md").write_text("what I learnt")
    return folder.path


def a_run_under_git(root: Path) -> Path:
    folder = make(root, "r", 1.0)
    (folder.path / ".git").mkdir()
    return folder.path


@pytest.mark.parametrize(
    "planted",
    [
        a_project,
        an_empty_folder,
        a_link,
        the_folder_of_runs,
        the_folder_above,
        a_run_with_notes,
        a_run_under_git,
    ],
)
def test_what_is_not_wholly_a_run_stays(tmp_path: Path, planted: Callable[[Path], Path]) -> None:
    path = planted(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    refused(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_folder_one_stands_in_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make(tmp_path, "r", 1.0).path)
    refused(Path("."))
    assert len(all_runs(tmp_path)) == 1


def test_the_refusal_names_what_is_in_the_way(tmp_path: Path) -> None:
    error = refused(a_run_with_notes(tmp_path))
    assert "notes.md" in error.seen
    assert error.use.startswith("move notes.md out of ")


def test_a_run_in_use_is_not_deleted(tmp_path: Path) -> None:
    folder = make(tmp_path, "r", 1.0)
    with Lock(folder), pytest.raises(Refused) as refusal:
        folder.delete()
    assert refusal.value.exit_code == 56
    assert folder.path.exists()
    folder.lock.write_text(f"{os.uname().nodename}\n999999999\n1\n")  # its process is gone
    folder.delete()


def test_who_takes_the_lock_while_the_run_is_renamed_gets_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path, "r", 1.0)
    renamed = removal._renamed

    def late(path: Path) -> Path:
        Lock(folder).acquire()
        return renamed(path)

    monkeypatch.setattr(removal, "_renamed", late)
    with pytest.raises(Refused) as refusal:
        folder.delete()
    assert refusal.value.exit_code == 56
    assert folder.read_status() is not None


def test_an_interrupted_deletion_is_not_in_the_way_of_the_next(tmp_path: Path) -> None:
    for _ in range(2):
        (tmp_path / ".r.deleting" / "half").mkdir(parents=True, exist_ok=True)
        make(tmp_path, "r", 1.0).delete()
        assert os.listdir(tmp_path) == [".r.deleting"]


def test_files_that_will_not_go_are_told_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(removal.shutil, "rmtree", kept)
    with pytest.raises(Failed) as failure:
        make(tmp_path, "r", 1.0).delete()
    assert failure.value.exit_code == 55
    assert ".r.deleting" in failure.value.seen


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    options = "size=256k,nr_inodes=64"
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("exhausted", ["bytes", "inodes"])
def test_a_full_disk_is_made_room_on(small_disk: Path, exhausted: str) -> None:
    folder = make(small_disk, "r", 1.0)
    with pytest.raises(OSError, match="No space"):
        if exhausted == "bytes":
            (folder.checkpoints / "a").write_bytes(b"x" * (1 << 20))
        for number in range(1000):
            (folder.logs / f"rank-{number}").touch()
            if exhausted == "bytes":
                (folder.logs / f"rank-{number}").write_bytes(b"x" * 4096)
    with pytest.raises(Refused) as refusal:
        Lock(folder).acquire()
    assert refusal.value.exit_code == 55
    assert RunFolder(folder.path).delete() > 0
    assert os.listdir(small_disk) == []

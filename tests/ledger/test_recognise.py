"""A run is known by files that Paceline wrote: nobody's project is taken for one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.ledger import manifest as manifests
from paceline.ledger import recognise
from paceline.ledger.folder import RunFolder, Status, all_runs, create, find
from paceline.ledger.outcome import Refused

FOREIGN = {
    "job.toml": '[model]\npreset = "tiny"\n',
    "manifest.json": '{"schema": 1, "name": "web app", "kind": "pwa"}',
    "status.json": '{"schema": 1, "state": "done"}',
    "metrics.jsonl": "{}\n",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_that_name_makes_no_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / name).write_text(FOREIGN[name])
    assert not RunFolder(tmp_path / "project").is_run()
    assert all_runs(tmp_path) == []
    with pytest.raises(Refused):
        find("project", tmp_path)


@pytest.mark.parametrize("damage", [{"schema": 2}, {"schema": None}, {"state": "flying"}])
def test_a_status_that_is_not_ours_makes_no_run(tmp_path: Path, damage: dict[str, object]) -> None:
    path = tmp_path / "status.json"
    Status(state="done").write(path)
    assert recognise.is_ours(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    assert not recognise.is_ours(tmp_path)


def test_the_manifest_alone_makes_a_run_and_needs_its_run_id(tmp_path: Path) -> None:
    made = manifests.new_manifest()
    manifests.write(RunFolder(tmp_path), made)
    assert recognise.is_ours(tmp_path)
    for run_id in (None, "", "0" * 31, 7):
        (tmp_path / "manifest.json").write_text(json.dumps({**made, "run_id": run_id}))
        assert not recognise.is_ours(tmp_path)


def test_a_run_that_died_before_its_first_status_is_a_run_while_it_holds_nothing(tmp_path: Path) -> None:
    folder = create(tmp_path, "r")
    (folder.checkpoints / ".probe-host-1").write_text("")
    (folder.path / ".status.json.x1y2").write_text("{")
    assert recognise.is_ours(folder.path)
    (folder.source / "precious.py").write_text("")
    assert not recognise.is_ours(folder.path)


def test_a_run_whose_files_are_all_damaged_is_listed_still(tmp_path: Path) -> None:
    folder = create(tmp_path, "r")
    Status(state="done").write(folder.status)
    folder.status.write_text("[" * 100_000)
    assert [found.name for found in all_runs(tmp_path)] == ["r"]
    assert not recognise.is_ours(folder.path)

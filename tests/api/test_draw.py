"""``plan --draw``: the layout's schedule as text, file and JSON."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import paceline as pl
from paceline.api.draw import drawing, file_name
from tests.api.measured import plant
from tests.cli.shell import in_process


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("paceline.api.plan.cache_folder", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    plant(tmp_path)
    (tmp_path / "a.txt").write_text("word " * 4000)
    path = tmp_path / "job.toml"
    path.write_text('data.train = "a.txt"\nmodel.preset = "tiny"\ntrain.steps = 20\n')
    return path


def test_the_schedule_of_the_plan_is_drawn(job: Path) -> None:
    found = pl.plan(job, layout="pp=2,mbs=8")
    drawn = drawing(found)
    assert drawn is not None
    assert drawn.micro_batches == 4
    assert drawn.text(200).startswith("pp=2,mbs=8 · 4 micro-batches · bubble ")
    drawn.write(file_name(found))
    assert ET.parse(job.parent / "job-pp2-mbs8.svg").getroot().tag.endswith("svg")
    assert drawn.to_dict()["orders"][0][:3] == ["0F0", "0F1", "0B0"]


def test_without_a_pipeline_there_is_nothing_to_draw(job: Path) -> None:
    assert drawing(pl.plan(job, layout="single")) is None


def test_a_folder_that_takes_no_file_is_explained(job: Path) -> None:
    drawn = drawing(pl.plan(job, layout="pp=2"))
    assert drawn is not None
    with pytest.raises(pl.Failed) as caught:
        drawn.write(job.parent / "missing" / "a.svg")
    assert caught.value.exit_code == 55


def test_the_command_prints_writes_and_says_so(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = in_process(capsys, "plan", str(job), "--layout", "pp=2:gpipe,mbs=8", "--draw")
    assert done.code == 0
    assert "rank 0 F0 F1 F2 F3" in done.out
    assert "drawn    job-pp2.gpipe-mbs8.svg" in done.err
    assert (job.parent / "job-pp2.gpipe-mbs8.svg").exists()
    found = json.loads(in_process(capsys, "plan", str(job), "--layout", "pp=2", "--draw", "--json").out)
    assert found["result"]["schedule"]["svg"].endswith(".svg")
    assert "nothing: single" in in_process(capsys, "plan", str(job), "--layout", "single", "--draw").err

"""``cluster measure --from RUN``: a run's own seconds correct the next plan, for its layout and for others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

import paceline as pl
from paceline.api import surroundings
from tests.api.measured import plant
from tests.cli.shell import in_process
from tests.flow.corpus import JOB, write_job

LONG = JOB.replace("train.steps = 12", "train.steps = 40").replace(
    'eval.every = "50%"', 'eval.every = "never"'
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrating")
    job = write_job(folder, LONG)
    for layout in ("single", "dp=2"):
        pl.train(job, layout=layout, name=layout.replace("=", ""))
    return folder


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A measurement of its own, so that a correction reaches no other test.

    Of a machine about as fast as small steps are here, so that no factor leaves what is believed when others are busy.
    """
    plant(tmp_path / "cache", alone=12e9, shared=6e9, start=6e-4)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    surroundings.environment.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    surroundings.environment.cache_clear()


def predicted(job: Path, layout: str, **more: str) -> float:
    return pl.plan(job, layout=layout, **more).best.step_s[1]


def took(folder: Path, name: str) -> float:
    return median(pl.Run(folder / "runs" / name).metrics()["step_time_s"][2:])


def test_the_next_plan_says_what_the_run_took(
    runs: Path, fresh_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, real = runs / "job.toml", took(runs, "single")
    done = in_process(capsys, "cluster", "measure", "--from", str(runs / "runs" / "single"), "--json")
    assert done.code == 0, done.err
    factors = json.loads(done.out)["result"]["factors"]
    assert set(factors) >= {"compute"}
    after = predicted(job, "single")
    assert abs(after / real - 1) < 0.25  # parts below a hundredth of a step stay as priced
    plan = pl.plan(job, layout="single")
    assert any(text.startswith("corrected: compute") for text in plan.assumed)
    low, _, high = plan.best.step_s
    assert high / low < 2.5


def test_several_runs_say_how_far_apart_they_are(
    runs: Path, fresh_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for name in ("single", "dp2") for word in ("--from", str(runs / "runs" / name))]
    out = fresh_cache / "lab.toml"
    done = in_process(capsys, "cluster", "measure", *words, "--out", str(out), "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["result"]
    assert len(found["runs"]) == 2
    taught = [run for run in found["runs"] if "compute" not in found["left_out"][run]]
    assert ("compute" in found["spread"]) == (len(taught) == 2)
    # of the two only dp=2 has messages; where a busy machine makes a time no rate, that is said
    assert {"compute", "deliver"} <= set(found["factors"]).union(*found["left_out"].values())
    assert "deliver" not in found["spread"]
    here, there = pl.plan(runs / "job.toml"), pl.plan(runs / "job.toml", cluster=str(out))
    assert there.best.step_s == here.best.step_s


def test_what_cannot_be_learnt_from_is_refused(
    runs: Path, fresh_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = fresh_cache / "short"
    shutil.copytree(runs / "runs" / "single", short)
    for path in short.glob("ledger/rank-*.jsonl"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))
    done = in_process(capsys, "cluster", "measure", "--from", str(short))
    assert done.code == 2
    assert "too few steps" in done.err
    moved = fresh_cache / "moved"
    shutil.copytree(runs / "runs" / "single", moved)
    manifest = json.loads((moved / "manifest.json").read_text())
    manifest["hardware_found"]["cpu"] = "another processor"
    (moved / "manifest.json").write_text(json.dumps(manifest))
    done = in_process(capsys, "cluster", "measure", "--from", str(moved))
    assert done.code == 13
    assert "another processor" in done.err
    assert not any("corrected" in text for text in pl.plan(runs / "job.toml").assumed)

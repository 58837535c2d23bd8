"""``examples/demo.py`` with settings that teach a model nothing in a few steps: both runs, and an honest verdict.

Whether the real settings beat the trigram is what ``make demo`` itself finds out: it exits with 1 where they do not.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from paceline.api.runs import Run
from paceline.job.load import load
from tests.api.measured import plant
from tests.cli.shell import ROOT, environment

LIMIT_S = 120.0
SMALL = """\
data.train = "python-stdlib"
data.tokenizer = "bpe:300"
data.sequence_length = 256
model.hidden_size = 16
model.intermediate_size = 32
model.num_hidden_layers = 1
model.num_attention_heads = 2
model.num_key_value_heads = 1
train.steps = 3
train.global_batch_size = 2
train.precision = "fp32"
layout.use = "single"
eval.limit = 4
eval.every = "never"
restart.hang_timeout = "60s"
"""


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_demo_trains_resumes_over_two_processes_and_admits_that_it_lost(
    tmp_path: Path, demo: ModuleType
) -> None:
    (tmp_path / "small.toml").write_text(SMALL, encoding="utf-8")
    plant(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), "--job", "small.toml"],
        cwd=tmp_path,
        env=environment(PACELINE_CACHE=str(tmp_path / "cache")),
        capture_output=True,
        encoding="utf-8",
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    run = Run(tmp_path / "runs" / "demo")
    assert run.state == "done"
    assert run.status.step == 3 + demo.RESUMED_STEPS
    assert run.layout.degree("fsdp") == 2
    losses = run.metrics("train")
    assert list(losses["step"]) == list(range(1, 3 + demo.RESUMED_STEPS + 1))
    assert done.stdout.count("MISSED") == 2
    assert "BEATEN" not in done.stdout
    assert "$ paceline train runs/demo.toml\n" in done.stdout
    assert str(Path("runs/demo/report.html")) in done.stdout
    assert "plan " in done.stderr


@pytest.mark.parametrize(
    ("model", "word", "holds"), [(1.2, "BEATEN", True), (2.0, "MISSED", False), (2.1, "MISSED", False)]
)
def test_verdict_is_won_only_below_the_trigram(
    demo: ModuleType, model: float, word: str, holds: bool
) -> None:
    row = {"step": 9, "bits_per_byte": model}
    run = SimpleNamespace(manifest={"evaluation": {"baselines": {"trigram": {"bits_per_byte": 2.0}}}})
    for line, held in demo.verdict(run, ("single", row), ("fsdp=2", row)):
        assert line.startswith(word)
        assert held is holds
        assert "2.000" in line


def test_the_examples_job_is_valid_and_its_files_are_shared_out_by_name(
    tmp_path: Path, demo: ModuleType
) -> None:
    job = load(str(demo.write_job(tmp_path / "demo.toml", demo.JOB))).job
    train, held_out = ([item.path for item in side] for side in (job.data.train, job.data.eval))
    assert not set(train) & set(held_out)
    assert len(held_out) == (len(train) + len(held_out)) // demo.HELD_OUT_EACH
    assert {Path(path).parts[-2] for path in train} >= set(demo.PACKAGES)
    assert sum(Path(path).stat().st_size for path in held_out) > 100_000

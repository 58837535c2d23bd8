"""Whatever a run's files hold, it is listed, reported and compared: readers never raise."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.api.runs import Run, runs
from paceline.evidence.compare import compare, text
from paceline.evidence.facts import Facts
from paceline.evidence.report import UNSHOWN, report_html
from paceline.ledger.folder import RunFolder
from tests.evidence.synthetic_run import Story, write_run

HOSTILE: list[Any] = [
    "x",
    None,
    [],
    {},
    [1],
    {"a": 1},
    -1,
    1e308,
    float("nan"),
    float("inf"),
    10**400,
    True,
    "",
]
FILES = ("status.json", "manifest.json", "metrics.jsonl", "evidence/plan.json", "phases/1-plan.json",
         "phases/3-deliver.json", "ledger/rank-00000.jsonl", "checkpoints/latest", "job.toml")  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")
    write_run(root, Story(name="a", ranks=2, steps=20))
    write_run(root, Story(name="b", ranks=2, steps=20, resumed_at=8, job={"optimizer.lr": 1e-3}))
    return root


@pytest.fixture
def root(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "runs"))


def survives(root: Path) -> str:
    """All that is made of runs; the text of the report of ``b``."""
    for run in runs(root):
        assert run.state in ("done", "running", "failed", "lost", "preempted", "preparing", "stopping")
        run.last("train"), run.last("eval"), run.metrics(), run.checkpoints()
    assert len(runs(root)) == 2, "the damaged run is listed"
    found = compare([RunFolder(root / "a"), RunFolder(root / "b")])
    assert text(found)
    json.dumps(found.to_dict())
    return report_html(Facts(RunFolder(root / "b")))


def test_a_sound_run_has_nothing_that_cannot_be_shown(root: Path) -> None:
    assert UNSHOWN not in survives(root)


@pytest.mark.parametrize(
    "content", ["", "{", "[" * 100_000, '{"a":' * 100_000, "\x00", "null", "[]", "7", '"x"']
)
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_anything(root: Path, name: str, content: str) -> None:
    (root / "b" / name).write_text(content)
    assert "<h1>b</h1>" in survives(root)


def test_a_run_whose_status_cannot_be_read_says_so(root: Path) -> None:
    (root / "b" / "status.json").write_text("[" * 100_000)
    run = Run("b", root=root)
    assert (run.state, run.status.message) == ("failed", "status.json cannot be read")


def harmed(value: Any, dice: random.Random, harm: Callable[[], Any]) -> Any:
    """The value with one place of it changed."""
    if isinstance(value, dict) and value and dice.random() < 0.8:
        key = dice.choice(sorted(value))
        return {**value, key: harmed(value[key], dice, harm)}
    if isinstance(value, list) and value and dice.random() < 0.8:
        at = dice.randrange(len(value))
        return [*value[:at], harmed(value[at], dice, harm), *value[at + 1 :]]
    return harm()


@pytest.mark.parametrize("seed", range(40))
def test_a_wrong_value_anywhere(root: Path, seed: int) -> None:
    dice = random.Random(seed)
    for name in FILES[:7]:
        path = root / "b" / name
        lines = path.read_text().splitlines() if name.endswith("l") else [path.read_text()]
        for _ in range(1 if len(lines) == 1 else 8):
            at = dice.randrange(len(lines))
            try:
                lines[at] = json.dumps(harmed(json.loads(lines[at]), dice, lambda: dice.choice(HOSTILE)))
            except ValueError:
                continue  # harmed before into something that is not JSON
        path.write_text("\n".join(lines) + "\n")
    survives(root)

"""A run that changes its layout sees the same samples in the same order and ends where the straight run ends.

A float64 job trains FIRST steps on one layout and MORE on another, by the real command from checkpoint to checkpoint;
only the ranks are warm ones. Each sample that a rank was given is written down. ``make test`` runs four pairs, ``make
prove`` all of them (marker ``proof``): each layout of ``pairs.py`` as where a run comes from and as where it goes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline as pl
from paceline.api import train as api
from paceline.recipes.brief import Brief
from paceline.recover.whole import read_whole
from tests.flow import pairs
from tests.flow.corpus import JOB, write_job
from tests.flow.pairs import FAMILIES, IN_TESTS, PAIRS, Row
from tests.pool import RankPool

FIRST, MORE = 3, 20
LIMIT = 1e-9
CHANGES = {
    "dense": (
        'model.tie_word_embeddings = true\nmodel.attention_bias = true\n'
    ),
    "experts": (
        "model.num_experts = 4\nmodel.num_experts_per_tok = 2\nmodel.moe_intermediate_size = 24\n"
        'model.n_shared_experts = 1\nmodel.first_k_dense_replace = 1\nmodel.scoring_func = "sigmoid"\n'
        "model.router_aux_loss_coef = 0.05\n"
    ),
}  # fmt: skip


@dataclass
class Bench:
    """Runs of one family: the straight one, and one a layout that was stopped after FIRST steps."""

    folder: Path
    ranks: RankPool
    rows: list[Row] = field(default_factory=list)
    stop_after: int = 0

    def attempts(self, brief: Brief, **_: Any) -> dict[str, Any]:
        """In the place of ``run_attempts``: the ranks of the pool."""
        arguments = {"payload": brief.payload(), "stop_after": self.stop_after}
        if brief.layout.world_size == 1:
            done = [pairs.attempt(None, **arguments)]
        else:
            ranks = self.ranks(brief.layout.world_size)
            done = ranks.run("tests.flow.pairs:attempt", timeout_s=120, **arguments)
        self.rows = [row for _, given in done for row in given]
        return done[0][0]

    def train(self, job: Path, *, layout: str, stop_after: int = 0, **options: Any) -> pl.Run:
        self.stop_after = stop_after
        return pl.train(job, layout=layout, **options)

    def stopped(self, layout: str) -> Path:
        """The folder of a run that trained FIRST steps on a layout."""
        folder = self.folder / "stopped" / layout
        if not folder.exists():
            run = self.train(self.folder / "job.toml", layout=layout, name="stopped", stop_after=FIRST)
            assert (run.state, run.checkpoints()[-1].step) == ("preempted", FIRST)
            folder.parent.mkdir(exist_ok=True)
            run.path.rename(folder)
        return folder


@pytest.fixture(scope="module")
def bench(
    ranks: RankPool, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Bench, pl.Run, list[Row]]]:
    """family → its bench, the straight run, and the rows of it."""
    made: dict[str, tuple[Bench, pl.Run, list[Row]]] = {}

    def of(family: str) -> tuple[Bench, pl.Run, list[Row]]:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            text = JOB.replace('"fp32"', '"fp64"').replace("layers = 2", "layers = 4")
            text = text.replace("steps = 12", f"steps = {FIRST + MORE}").replace("size = 6", "size = 8")
            text = (
                text.replace("eval = 0.2", "eval = 0.05")
                .replace("every = 4", 'every = "never"')
                .replace('"50%"', '"never"')
            )
            write_job(folder, text + CHANGES[family])
            found = Bench(folder, ranks)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(api, "run_attempts", found.attempts)
                straight = found.train(folder / "job.toml", layout="single", name="straight")
            made[family] = (found, straight, found.rows)
        return made[family]

    return of


def samples(rows: list[Row]) -> list[Row]:
    """In the order of the run; of the ranks that compute one sample together each was given it."""
    found = sorted(set(rows))
    places = [position for _, position, _ in found]
    assert len(set(places)) == len(places), "two samples at one place of the order"
    return found


@pytest.mark.parametrize(
    ("family", "before", "after"),
    [*IN_TESTS, *(pytest.param(*pair, marks=pytest.mark.proof) for pair in PAIRS if pair not in IN_TESTS)],
)
def test_the_straight_run_is_where_it_ends(
    bench: Callable[[str], tuple[Bench, pl.Run, list[Row]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    family: str,
    before: str,
    after: str,
) -> None:
    found, straight, expected = bench(family)
    monkeypatch.setattr(api, "run_attempts", found.attempts)
    shutil.copytree(found.stopped(before), tmp_path / "moved")
    moved = found.train(tmp_path / "moved", layout=after, resume=True)
    assert moved.state == "done"
    assert samples(found.rows) == [row for row in samples(expected) if row[0] > FIRST]
    last = f"step-{FIRST + MORE:08d}"
    ours, theirs = (read_whole(run.path / "checkpoints" / last) for run in (moved, straight))
    assert ours.keys() == theirs.keys()
    differences = {name: float((ours[name] - tensor).abs().max()) for name, tensor in theirs.items()}
    worst = max(differences, key=differences.__getitem__)
    record_property("largest", f"{differences[worst]:.1e} {worst}")
    assert all(tensor.dtype == torch.float64 for name, tensor in theirs.items() if name.endswith("weight"))
    assert differences[worst] <= LIMIT, f"{worst}: {differences[worst]:.1e}"


def test_every_layout_is_once_where_a_run_comes_from_and_once_where_it_goes() -> None:
    assert len(set(PAIRS) | set(IN_TESTS)) >= 40
    for family, layouts in FAMILIES.items():
        mine = [pair for pair in PAIRS if pair[0] == family]
        assert {a for _, a, _ in mine} == {b for _, _, b in mine} == set(layouts)
        assert all(a != b for _, a, b in mine)

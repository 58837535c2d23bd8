"""A rank of four is killed, at instants that nobody chose and while weights are changing: no finished step is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import paceline as pl
from paceline.api.surviving import Survivors
from paceline.recover.live.survive import in_update
from tests.drills.small import (
    STEPS,
    assert_same_bits,
    end_state,
    events,
    fired,
    pids_of,
    plant,
    train,
    write_tiny,
)

Record = Callable[[str, object], None]
WIDER = {  # so that a change of the weights takes long enough to be struck in
    "model__hidden_size": "192",
    "model__intermediate_size": "384",
    "train__global_batch_size": "12",
    "checkpoint__every": "15",
    "restart__max": "3",
}


@dataclass
class Killer:
    """Kills ``rank`` once, after step ``step``: while weights are changing, or ``wait_s`` later wherever it is."""

    run: Path
    rank: int
    step: int
    wait_s: float
    in_update: bool
    survivors: list[Survivors]
    struck_s: float = 0.0
    done: list[int] = field(default_factory=list)
    hit_update: bool = False

    def watch(self) -> None:
        """Until it has struck."""
        while not self.survivors:
            time.sleep(0.001)
        words = self.survivors[0]._words
        while words.done.min() < self.step:
            time.sleep(0.0005)
        if self.in_update:
            while in_update(words) is None:
                time.sleep(1e-4)
        time.sleep(self.wait_s)
        pid = pids_of(self.run)[self.rank]
        self.done = [int(step) for step in words.done]
        self.struck_s = time.time()
        os.kill(pid, signal.SIGKILL)
        self.hit_update = in_update(words) is not None


@pytest.fixture
def survivors(monkeypatch: pytest.MonkeyPatch) -> list[Survivors]:
    """Those of the run that is started next."""
    made: list[Survivors] = []
    plain = Survivors.__init__

    def remembered(self: Survivors, ranks: int) -> None:
        plain(self, ranks)
        made.append(self)

    monkeypatch.setattr(Survivors, "__init__", remembered)
    return made


def strike(job: Path, name: str, layout: str, killer: Killer) -> tuple[pl.Run, list[dict[str, float]]]:
    """The run with the kill in it, and its rows as they came, with their time."""
    came: list[dict[str, float]] = []
    thread = threading.Thread(target=killer.watch, daemon=True)
    thread.start()

    def on_row(row: dict[str, object]) -> None:
        if row["kind"] == "train":
            came.append({"step": int(str(row["step"])), "unix_s": time.time()})

    run = pl.train(job, layout=layout, name=name, on_row=on_row)
    thread.join(5)
    assert killer.struck_s, "the kill must have happened"
    return run, came


def judge(run: pl.Run, straight: pl.Run, killer: Killer) -> None:
    assert len(events(run, "restart")) == 1, events(run, "restart")
    (restart,) = events(run, "restart")
    assert f"rank {killer.rank} " in restart["detail"]["cause"]
    assert restart["detail"]["from"] == f"memory, after step {restart['step']}"
    assert restart["step"] >= max(killer.done), "a finished step is lost"
    assert run.state == "done"
    assert_same_bits(run, straight)
    for column in ("step", "loss", "grad_norm", "lr", "samples", "tokens"):
        assert list(run.metrics()[column]) == list(straight.metrics()[column]), column


@pytest.mark.drill(1)
@pytest.mark.parametrize(
    ("layout", "rank", "hit"),
    [
        ("dp=2,fsdp=2", 3, True),
        pytest.param("dp=4", 0, True, marks=pytest.mark.slow_drill),
        pytest.param("fsdp=2,tp=2", 1, False, marks=pytest.mark.slow_drill),
        pytest.param("pp=2,dp=2", 2, True, marks=pytest.mark.slow_drill),
    ],
)
def test_no_finished_step_is_lost(
    layout: str, rank: int, hit: bool, survivors: list[Survivors], tmp_path: Path, record_property: Record
) -> None:
    job = write_tiny(tmp_path, **WIDER)
    straight = pl.train(job, layout=layout, name="straight")
    survivors.clear()
    killer = Killer(tmp_path / "runs" / "struck", rank, 11, 0.0 if hit else 0.01, hit, survivors)
    run, _ = strike(job, "struck", layout, killer)
    judge(run, straight, killer)
    record_property("steps_lost", 0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("layout", ["dp=4", "dp=2,fsdp=2"])
def test_kills_at_random_instants(
    layout: str, seed: int, survivors: list[Survivors], tmp_path: Path, record_property: Record
) -> None:
    """Four in each case: twenty of each layout."""
    job = write_tiny(tmp_path, **WIDER)
    straight = pl.train(job, layout=layout, name="straight")
    chance = random.Random(f"{layout} {seed}")
    inside, waited = 0, []
    for number in range(4):
        survivors.clear()
        killer = Killer(
            tmp_path / "runs" / f"struck-{number}",
            chance.randrange(4),
            chance.randint(2, STEPS - 4),
            chance.random() * (0.001 if number % 2 else 0.1),
            bool(number % 2),
            survivors,
        )
        run, came = strike(job, killer.run.name, layout, killer)
        judge(run, straight, killer)
        inside += killer.hit_update
        (restart,) = events(run, "restart")
        after = [row["unix_s"] for row in came if row["step"] > restart["step"]]
        waited.append(round(after[0] - killer.struck_s, 2))
    record_property("steps_lost", 0)
    record_property("seconds_lost", max(waited))
    print(f"{layout}: {inside} of 4 inside an update; the next step's row after {sorted(waited)} s")


@pytest.mark.drill(1, 35)
@pytest.mark.parametrize(
    ("layout", "after", "hit"),
    [
        ("dp=4", "dp=3", True),
        pytest.param("dp=2,fsdp=2", "fsdp=2", True, marks=pytest.mark.slow_drill),
        pytest.param("fsdp=4", "fsdp=3", False, marks=pytest.mark.slow_drill),
        ("dp=2", "single", True),
    ],
)
def test_the_ranks_that_are_left_take_over(
    layout: str, after: str, hit: bool, survivors: list[Survivors], tmp_path: Path, record_property: Record
) -> None:
    """Each sample once, in the same order, and the weights of one device in float64."""
    job = write_tiny(tmp_path, **WIDER, train__precision='"fp64"', restart__elastic="true")
    straight = pl.train(job, layout="single", name="straight")
    survivors.clear()
    killer = Killer(tmp_path / "runs" / "struck", 1, 11, 0.0 if hit else 0.01, hit, survivors)
    run, _ = strike(job, "struck", layout, killer)
    (restart,) = events(run, "restart")
    assert restart["step"] >= max(killer.done), "a finished step is lost"
    assert restart["detail"]["from"] == f"memory, after step {restart['step']}"
    assert restart["detail"]["layout"].startswith(f"{after},")
    assert str(run.status.layout).startswith(f"{after},")
    for column in ("step", "samples", "tokens"):
        assert list(run.metrics()[column]) == list(straight.metrics()[column]), column
    assert np.allclose(run.metrics()["loss"], straight.metrics()["loss"], rtol=1e-9, atol=0)
    expected = end_state(straight)
    for name, tensor in end_state(run).items():
        floor = max(float(expected[name].double().norm()), 1e-4)
        assert float((tensor - expected[name]).double().norm()) / floor <= 1e-9, name
    record_property("steps_lost", 0)


@pytest.mark.parametrize(
    ("layout", "lost", "left"),
    [
        ("dp=4,mbs=1", 1, "dp=3,mbs=1"),
        ("dp=4,mbs=1", 3, "single,mbs=1"),
        ("dp=2,fsdp=2:zero1,mbs=1", 1, "fsdp=2:zero1,mbs=1"),
        ("dp=2,tp=2,mbs=1", 1, "tp=2,mbs=1"),
        ("fsdp=4,tp=2,mbs=1", 1, "fsdp=3,tp=2,mbs=1"),
        ("fsdp=3,mbs=1", 2, "single,mbs=1"),
        ("tp=4,mbs=1", 1, None),
        ("pp=2,mbs=1", 1, None),
        ("dp=2,tp=2,mbs=1", 3, None),
    ],
)
def test_which_layout_is_left(layout: str, lost: int, left: str | None, tmp_path: Path) -> None:
    from paceline.api.elastic import left_over

    job = pl.Job.load(write_tiny(tmp_path))
    found = left_over(pl.Layout.parse(layout), lost, job, job.model.widths(101))
    assert (None if found is None else str(found)) == left


def test_without_room_for_the_memory_the_checkpoint_serves(tmp_path: Path, cache: str) -> None:
    job = write_tiny(tmp_path)
    straight = pl.train(job, layout="dp=2", name="straight")
    plant(job, "no_room", step=13, saved=10, always=True)
    run = train(job, "full")
    assert {one["attempt"] for one in fired(job)} == {0, 1}
    sources = [row["detail"]["from"] for row in events(run, "restart")]
    assert [source.startswith("memory") for source in sources] == [True, False]
    assert sources[1] == "step-00000010"
    assert_same_bits(run, straight)

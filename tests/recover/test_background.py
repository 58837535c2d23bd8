"""Saves in the background: what is saved is the state of its step, one save at a time, and no failure is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.ledger.outcome import Exit, Failed
from paceline.recover import checkpoint, container, steps
from paceline.recover.agree import Ranks
from paceline.recover.background import Background
from paceline.recover.buffer import Buffer, offsets
from paceline.recover.peers import Peers
from paceline.recover.state import TrainState
from paceline.recover.whole import read_whole
from tests.pool import RankPool
from tests.recover.cases import IDENTITY, Values

CASES = "tests.recover.background_cases"


def state_of(step: int, size: int = 64, value: float | None = None) -> TrainState:
    tensor = torch.full((size,), float(step) if value is None else value)
    return TrainState({"model/w": tensor}, {"step": step})


def saver(folder: Path, **options: int) -> Background:
    return Background(folder, Ranks(None), layout="single", identity=IDENTITY, **options)


def processes(background: Background) -> int:
    assert background._process is not None
    return background._process.pid


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.drill(32)
@pytest.mark.parametrize("layout", ["single", "dp=2", "fsdp=3", "dp=2,fsdp=2", "tp=2"])
def test_what_is_saved_is_the_state_of_its_step(layout: str, ranks: RankPool, tmp_path: Path) -> None:
    """D32: training changes every value while they are written."""
    world = 1
    for part in layout.split(","):
        world *= int(part.partition("=")[2] or 1)
    results: list[tuple[Values, list[int]]] = ranks(world).run(
        f"{CASES}:train_while_saving", layout=layout, folder=tmp_path, timeout_s=120
    )
    assert [told for _, told in results] == [[2, 6]] * world
    path = tmp_path / "step-00000002"
    assert checkpoint.verify(path) == []
    saved = read_whole(path, "")
    kept = results[0][0]
    assert kept.keys() == saved.keys() - {"model/head.weight"}, "the tied one comes back under both names"
    for name, value in kept.items():
        assert np.array_equal(saved[name].numpy(), value), name
    assert names(tmp_path) == ["latest", "step-00000002", "step-00000006"]
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000006"


@pytest.mark.drill(31)
def test_a_save_waits_for_the_one_before_it(tmp_path: Path) -> None:
    """D31: slower than the interval: never two at once, and each is whole."""
    background = saver(tmp_path, keep=9)
    waited_s, told = 0.0, []
    for step in range(1, 6):
        background.begin(state_of(step, 3_000_000))
        waited_s += background.waited_s
        told += [one.step for one in background.poll()]
        assert len([n for n in names(tmp_path) if ".tmp-" in n]) <= 1
    background.wait()
    told += [one.step for one in background.poll()]
    assert told == [1, 2, 3, 4, 5]
    assert waited_s > 0
    for step in range(1, 6):
        found = read_whole(tmp_path / f"step-{step:08d}")["w"]
        assert (found == step).all()
    background.close()


@pytest.mark.drill(31)
def test_the_memory_is_one_copy_however_many_saves(tmp_path: Path) -> None:
    background = saver(tmp_path, keep=1)
    sizes = []
    for step in range(1, 5):
        background.begin(state_of(step, 1_000_000))
        sizes.append(os.fstat(background._buffer.fd).st_size)
    background.wait()
    assert sizes == [4_000_000] * 4
    background.begin(state_of(9, 1_500_000))  # a state that grew
    background.wait()
    assert (read_whole(tmp_path / "step-00000009")["w"] == 9).all()
    background.close()


@pytest.mark.drill(30)
def test_a_save_that_fails_is_told_by_the_next_call(tmp_path: Path) -> None:
    """D30: the folder's parent is gone."""
    background = saver(tmp_path / "run" / "checkpoints")
    background.begin(state_of(1))
    with pytest.raises(Failed, match="has vanished") as caught:
        for _ in range(200):
            background.poll()
            time.sleep(0.05)
    assert caught.value.exit_code == Exit.STORE
    (tmp_path / "run").mkdir()
    background.begin(state_of(2))  # it goes on where the fault is mended
    background.wait()
    assert checkpoint.latest(tmp_path / "run" / "checkpoints") is not None
    background.close()


@pytest.mark.drill(30)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_writer_that_is_killed_ends_its_rank_and_leaves_the_last_save(
    rank: int, ranks: RankPool, tmp_path: Path
) -> None:
    errors = ranks(2).run(f"{CASES}:kill_a_writer", layout="fsdp=2", folder=tmp_path, rank=rank, timeout_s=60)
    assert errors[rank]["exit_code"] == Exit.STORE
    assert "exit code -9" in errors[rank]["seen"]
    assert errors[1 - rank] == {}
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000001"
    assert checkpoint.verify(tmp_path / "step-00000001") == []


@pytest.mark.drill(19)
def test_a_writer_killed_at_any_instant_leaves_the_last_save_and_its_rest_is_removed(tmp_path: Path) -> None:
    random.seed(7)
    torn = 0
    for step in range(1, 21):
        background = saver(tmp_path, attempt=step)
        background.start(state_of(step, 500_000))
        background.begin(state_of(step, 500_000))
        time.sleep(random.random() * 0.03)
        os.kill(processes(background), signal.SIGKILL)
        with suppress(Failed):  # the save had ended before the kill, or it is told
            background.wait()
        background.close()
        torn += any(name.startswith(".step-") for name in names(tmp_path))
        if (found := checkpoint.latest(tmp_path)) is not None:
            assert checkpoint.verify(found) == []
            assert len(set(read_whole(found)["w"].tolist())) == 1
    assert torn > 5, "the kills did not fall into saves"
    last = saver(tmp_path, attempt=21)
    last.begin(state_of(30))
    last.wait()
    last.close()
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000030"
    assert not [name for name in names(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("rank", [0, 1])
def test_without_memory_for_a_copy_all_save_here_and_now(rank: int, ranks: RankPool, tmp_path: Path) -> None:
    found = ranks(2).run(f"{CASES}:without_memory", layout="fsdp=2", folder=tmp_path, rank=rank, timeout_s=60)
    assert found == [([1, 2], ["step-00000001", "step-00000002"])] * 2


PROGRAM = """
import sys, time, torch
from pathlib import Path
from paceline.recover.agree import Ranks
from paceline.recover.background import Background
from paceline.recover.state import TrainState
b = Background(Path(sys.argv[1]), Ranks(None), layout="single", identity={"run_id": "r"})
b.begin(TrainState({"model/w": torch.ones(int(sys.argv[2]))}, {"step": 1}))
print(b._process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_writer_does_not_outlive_its_rank(end: str, tmp_path: Path) -> None:
    """Published after the next attempt has begun, its save would turn `latest` back."""
    victim = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), "30000000"], stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    writer = int(victim.stdout.readline())
    getattr(victim, end)()
    victim.wait()
    limit_s = time.monotonic() + 10
    while steps.process.is_alive(writer):
        assert time.monotonic() < limit_s, "the writer lives on"
        time.sleep(0.02)
    before = names(tmp_path)
    time.sleep(0.3)
    assert names(tmp_path) == before
    victim.stdout.close()


def test_ctrl_c_of_the_terminal_does_not_end_a_save(tmp_path: Path) -> None:
    background = saver(tmp_path)
    background.begin(state_of(1, 3_000_000))
    os.kill(processes(background), 2)
    os.kill(processes(background), 15)
    background.wait()
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000001"
    background.close()


def test_the_writer_imports_no_torch() -> None:
    code = "import sys, paceline.recover.writer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_closing_twice_and_before_anything_was_saved(tmp_path: Path) -> None:
    background = saver(tmp_path)
    background.close()
    background.close()
    assert names(tmp_path) == []


def test_peers_whose_store_is_another_do_not_wait_for_ever(tmp_path: Path) -> None:
    peers = Peers(tmp_path / "meet", 1, 2, lambda: None, first_s=0.2)
    with pytest.raises(FileNotFoundError):
        peers.together(lambda: None, on=0)


def test_peers_go_on_together(tmp_path: Path) -> None:
    """Three in threads: parts in order, sums, and the folder is gone when all have left."""
    from concurrent.futures import ThreadPoolExecutor

    log: list[tuple[str, int]] = []

    def one(rank: int) -> tuple[int, object]:
        peers = Peers(tmp_path / "meet", rank, 3, lambda: None)
        peers.together(lambda: log.append(("open", rank)), on=0)
        total = peers.total(10 + rank)
        time.sleep(0.05 * rank)
        part = peers.together(lambda: log.append(("write", rank)))
        peers.together(lambda: log.append(("publish", rank)), on=0)
        peers.leave()
        return total, part

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(one, range(3)))
    assert [total for total, _ in results] == [33, 33, 33]
    assert log[0] == ("open", 0)
    assert sorted(log[1:4]) == [("write", 0), ("write", 1), ("write", 2)]
    assert log[4:] == [("publish", 0)]
    assert names(tmp_path) == []


def test_a_buffer_grows_and_keeps_what_it_holds() -> None:
    buffer = Buffer()
    buffer.reserve(100)
    buffer.bytes(10, 5)[:] = 7
    early = buffer.bytes(0, 100)
    buffer.reserve(10_000_000)
    assert buffer.bytes(10, 5).tolist() == [7] * 5
    buffer.bytes(10, 5)[:] = 8
    assert early[10:15].tolist() == [8] * 5, "old views see the same memory"
    other = Buffer(os.dup(buffer.fd))
    assert other.bytes(10, 5).tolist() == [8] * 5
    other.close()
    buffer.close()


def test_pieces_are_aligned() -> None:
    places = offsets([1, 0, 64, 65])
    assert places == [0, 64, 64, 128, 256]
    assert container.BLOCK_BYTES % 64 == 0


@pytest.mark.parametrize("fault", ["no process", "killed while it asks for memory"])
def test_without_a_writer_a_save_is_done_here_and_now(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(11, os.strerror(11))

    if fault == "no process":
        monkeypatch.setattr("paceline.recover.background.subprocess.Popen", none)
    else:
        monkeypatch.setattr("paceline.recover.background._PROGRAM", "import os; os.kill(os.getpid(), 9)")
    background = saver(tmp_path)
    for step in (1, 2):
        background.begin(state_of(step))
        assert [one.step for one in background.poll()] == [step]
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000002"
    background.close()

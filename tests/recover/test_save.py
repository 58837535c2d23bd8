"""A save happens whole or not at all, on all ranks alike, and takes nothing good with it when it fails."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from paceline.launch.forkserver import settle_in, start, warm
from paceline.ledger.outcome import Exit, Failed, Refused
from paceline.recover import checkpoint, container, manifest, steps
from paceline.recover.save import save
from paceline.recover.state import TrainState
from paceline.recover.whole import read_whole
from paceline.recover.write import Saved
from tests.pool import RankError, RankPool
from tests.recover.cases import IDENTITY, Run
from tests.small_disk import mounted

CASES = "tests.recover.cases"


def put(
    folder: Path, step: int, *, value: float = 0.0, size: int = 64, run: str = "run-a", **options: int
) -> Saved:
    state = TrainState({"model/w": torch.full((size,), value or float(step))}, {"step": step})
    return save(folder, state, layout="single", identity={**IDENTITY, "run_id": run}, **options)


def value_of(path: Path | None) -> float:
    assert path is not None
    assert checkpoint.verify(path) == []
    return float(read_whole(path)["w"][0])


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_what_is_there_after_a_save(tmp_path: Path) -> None:
    saved = put(tmp_path, 200)
    assert Path(saved) == saved.path == tmp_path / "step-00000200"
    assert names(saved.path) == ["manifest.json", "rank-00000.safetensors"]
    assert names(tmp_path) == ["latest", "step-00000200"]
    table = json.loads((saved.path / "manifest.json").read_text())
    assert (tmp_path / "latest").read_text() == f"step-00000200 {table['hash']}\n"
    assert table["identity"] == IDENTITY
    assert (table["schema"], table["format"], table["step"], table["layout"]) == (1, 1, 200, "single")
    assert saved.nbytes == 256
    assert saved.seconds >= saved.write_s > 0


def test_replicas_share_the_writing(ranks: RankPool, tmp_path: Path) -> None:
    sizes = ranks(3).run(f"{CASES}:bytes_by_rank", layout="dp=3", folder=tmp_path)
    table = manifest.read(tmp_path / "step-00000001")
    held = [
        sum(s.file == manifest.shard_name(r) for t in table.tensors.values() for s in t.slices)
        for r in range(3)
    ]
    assert min(held) > 5, held
    assert len(sizes) == 3
    assert all(len(t.slices) == 1 for t in table.tensors.values())
    ranks(4).run(f"{CASES}:bytes_by_rank", layout="dp=2,fsdp=2", folder=tmp_path / "hsdp")
    table = manifest.read(tmp_path / "hsdp" / "step-00000001")
    assert {s.file for t in table.tensors.values() for s in t.slices} == set(table.files)
    assert [s.starts for s in table.tensors["model/up.weight"].slices] == [(0, 0), (4, 0)]


@pytest.mark.drill(22)
@pytest.mark.parametrize(
    ("fault", "told"), [("ENOSPC", "is full"), ("EROFS", "read-only"), ("EDQUOT", "quota")]
)
@pytest.mark.parametrize("rank", [0, 2])
def test_one_ranks_trouble_is_every_ranks_error(
    fault: str, told: str, rank: int, ranks: RankPool, tmp_path: Path
) -> None:
    began = time.monotonic()
    errors = ranks(3).run(
        f"{CASES}:save_with_a_fault", layout="fsdp=3", folder=tmp_path, rank=rank, fault=fault, timeout_s=40
    )
    assert time.monotonic() - began < 35
    assert errors[0] == errors[1] == errors[2]
    assert errors[0]["exit_code"] == Exit.STORE
    assert told in errors[0]["message"]
    assert fault in errors[0]["seen"]
    assert f"rank-{rank:05d}.safetensors" in errors[0]["seen"]
    assert "bytes needed" in errors[0]["seen"]
    assert "bytes free" in errors[0]["seen"]
    assert names(tmp_path) == ["latest", "step-00000002", "step-00000006"]
    assert checkpoint.verify(tmp_path / "step-00000002") == []


def test_a_rank_killed_in_a_save_leaves_nothing_that_is_read(ranks: RankPool, tmp_path: Path) -> None:
    with pytest.raises(RankError, match="exit code -9"):
        ranks(2).run(f"{CASES}:die_while_saving", layout="fsdp=2", folder=tmp_path, rank=1, timeout_s=40)
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000002"
    again = ranks(2).run(f"{CASES}:train_and_save", layout="fsdp=2", folder=tmp_path, steps=4)
    assert names(tmp_path) == ["latest", "step-00000002", "step-00000004"]
    assert checkpoint.verify(tmp_path / "step-00000004") == []
    assert len(again) == 2


def test_hosts_with_disks_of_their_own_are_told_so(ranks: RankPool, tmp_path: Path) -> None:
    errors = ranks(2).run(f"{CASES}:save_apart", layout="dp=2", folder=tmp_path)
    assert errors[0] == errors[1]
    assert errors[0]["exit_code"] == Exit.STORE
    assert "not shared by all hosts" in errors[0]["message"]
    assert names(tmp_path / "host-0" / "checkpoints") == []


def test_ranks_with_other_scalars_do_not_save(ranks: RankPool, tmp_path: Path) -> None:
    errors = ranks(2).run(f"{CASES}:disagree", layout="dp=2", folder=tmp_path)
    assert errors[0] == errors[1]
    assert errors[0]["exit_code"] == Exit.DISAGREE
    assert names(tmp_path) == []


def test_a_tensor_that_no_rank_holds_whole_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.recover.shards.held_boxes", lambda *_: [])
    with pytest.raises(Failed, match="do not hold one state") as caught:
        put(tmp_path, 1)
    assert "slices hold 0 of 64 elements" in caught.value.seen
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("size", "place", "told"),
    [
        (64, -3, "model/w"),
        (64, 9, "bytes 0…"),
        (40_000_000, 500, "model/w"),
        (40_000_000, 70_000_000, "model/w"),
    ],
)
def test_what_does_not_read_back_is_not_named(
    size: int, place: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that returns another bit than it was given: in the header, early and late, in parts large and small."""
    put(tmp_path, 1)
    done = set()
    for name in ("fsync", "fdatasync"):

        def rot(fd: int, plain: Callable[[int], None] = getattr(os, name)) -> None:
            plain(fd)
            path = os.readlink(f"/proc/self/fd/{fd}")
            at = place % os.fstat(fd).st_size
            if path.endswith(".safetensors") and path not in done and at < os.fstat(fd).st_size:
                done.add(path)
                other = os.open(path, os.O_RDWR)
                os.pwrite(other, bytes([os.pread(other, 1, at)[0] ^ 16]), at)
                plain(other)
                os.close(other)

        monkeypatch.setattr(os, name, rot)
    with pytest.raises(Failed, match="does not read back") as caught:
        put(tmp_path, 2, size=size)
    assert caught.value.exit_code == Exit.STORE
    assert told in caught.value.seen
    assert names(tmp_path) == ["latest", "step-00000001"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "size=5m,nr_inodes=40") as place:
        yield place


@pytest.mark.drill(21)
def test_a_full_disk(small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    put(folder, 1, size=400_000)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 2_500_000)
    with pytest.raises(Failed, match="the store is full") as caught:
        put(folder, 2, size=400_000)
    assert caught.value.exit_code == Exit.STORE
    assert "ENOSPC" in caught.value.seen
    assert "1,600,000 bytes needed" in caught.value.seen
    assert names(folder) == ["latest", "step-00000001"]
    assert value_of(checkpoint.latest(folder)) == 1
    ballast.unlink()
    put(folder, 3, size=400_000)
    assert value_of(checkpoint.latest(folder)) == 3


@pytest.mark.drill(22)
def test_no_inodes_left(small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    put(folder, 1)
    for number in range(100):
        try:
            (small_disk / f"f{number}").touch()
        except OSError:
            break
    with pytest.raises(Failed, match="no inodes left"):
        put(folder, 2)
    assert value_of(checkpoint.latest(folder)) == 1


def test_a_read_only_store_is_found_before_the_first_step(small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    steps.check_store(folder, 1000)
    put(folder, 1)
    with pytest.raises(Failed, match="is full"):
        steps.check_store(folder, 10 << 20)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(Failed, match="read-only") as caught:
        steps.check_store(folder)
    assert caught.value.exit_code == Exit.STORE
    with pytest.raises(Failed, match="read-only"):
        put(folder, 2)
    assert value_of(checkpoint.latest(folder)) == 1


def test_a_store_that_vanished_is_told_and_one_that_can_be_made_is_made(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="has vanished") as caught:
        put(tmp_path / "run" / "checkpoints", 1)
    assert caught.value.exit_code == Exit.STORE
    (tmp_path / "run").mkdir()
    put(tmp_path / "run" / "checkpoints", 1)


def test_a_step_saved_again_replaces_the_old_one(tmp_path: Path) -> None:
    put(tmp_path, 5, value=1.0)
    put(tmp_path, 5, value=2.0, attempt=1)
    assert value_of(checkpoint.latest(tmp_path)) == 2
    put(tmp_path, 7, value=3.0)
    put(tmp_path, 5, value=4.0)
    assert value_of(tmp_path / "step-00000005") == 4
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000005", "what was saved last is resumed"
    assert names(tmp_path) == ["latest", "step-00000005", "step-00000007"]


@pytest.mark.drill(19)
@pytest.mark.parametrize("stop", ["rename", "write_latest", "remove"])
def test_killed_while_replacing_the_step_that_latest_names(
    stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every instant of the exchange: before and after each rename, before and after `latest`."""

    class Killed(BaseException):
        pass

    put(tmp_path, 5, value=1.0)
    for instant in range(1, 6):
        with monkeypatch.context() as patch:
            calls = iter(range(1, 100))
            owner = os if stop == "rename" else steps
            plain = getattr(owner, stop)

            def dying(
                *given: object, plain: object = plain, calls: Iterator[int] = calls, at: int = instant
            ) -> None:
                if next(calls) == at:
                    raise Killed
                plain(*given)  # type: ignore[operator]

            patch.setattr(owner, stop, dying)
            patch.setattr("paceline.recover.write.steps.remove", lambda _: None) if stop != "remove" else None
            try:
                put(tmp_path, 5, value=2.0, attempt=instant)
            except Killed:
                pass
        assert value_of(checkpoint.latest(tmp_path)) in (1.0, 2.0)
    put(tmp_path, 5, value=3.0, attempt=9)
    assert value_of(checkpoint.latest(tmp_path)) == 3.0
    assert names(tmp_path) == ["latest", "step-00000005"]


@pytest.mark.drill(33)
def test_retention_counts_numbers_and_not_letters(tmp_path: Path) -> None:
    for step in (90, 100, 99_999_999, 100_000_000):
        dropped = put(tmp_path, step, keep=2).dropped
    assert dropped == (100,)
    assert [s for s, _ in steps.published(tmp_path)] == [99_999_999, 100_000_000]


def test_keep_every(tmp_path: Path) -> None:
    for step in range(5, 60, 5):
        put(tmp_path, step, keep=1, keep_every=20)
    assert [s for s, _ in steps.published(tmp_path)] == [20, 40, 55]


def test_keep_zero_keeps_the_last(tmp_path: Path) -> None:
    put(tmp_path, 1, keep=0)
    put(tmp_path, 2, keep=0)
    assert [s for s, _ in steps.published(tmp_path)] == [2]


@pytest.mark.drill(33)
def test_what_latest_names_is_never_deleted(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        put(tmp_path, step, keep=9)
    put(tmp_path, 5, keep=1)  # resumed from an earlier step: the newest by number is not the newest
    assert [s for s, _ in steps.published(tmp_path)] == [5, 30]
    assert value_of(checkpoint.latest(tmp_path)) == 5


@pytest.mark.drill(33)
@pytest.mark.parametrize("keep", [1, 2])
def test_failing_saves_delete_nothing(keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 5)
    put(tmp_path, 10)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(container, "write", full)
    for step in (15, 20, 25):
        with pytest.raises(Failed):
            put(tmp_path, step, keep=keep)
    assert value_of(checkpoint.latest(tmp_path)) == 10
    assert [s for s, _ in steps.published(tmp_path)] == [5, 10]


def test_another_runs_steps_are_neither_deleted_nor_resumed_nor_replaced(tmp_path: Path) -> None:
    put(tmp_path, 1000, run="old")
    put(tmp_path, 10, keep=1, run="new")
    put(tmp_path, 20, keep=1, run="new")
    assert [s for s, _ in steps.published(tmp_path)] == [20, 1000]
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000020"
    with pytest.raises(Refused, match="belongs to another run"):
        put(tmp_path, 1000, run="new")
    assert value_of(tmp_path / "step-00000020") == 20


def test_leftovers_of_the_dead_are_removed_and_a_living_save_is_not(tmp_path: Path) -> None:
    put(tmp_path, 1)
    other = subprocess.Popen(["sleep", "60"])
    try:
        for name, pid in ((".step-00000009.tmp-0", 2**22 + 1), (".step-00000008.tmp-0", other.pid)):
            (tmp_path / name).mkdir()
            steps.mark(tmp_path / name, 0)
            row = json.loads((tmp_path / name / steps.MARKER).read_text())
            row.update(pid=pid, started=steps.process.start_time(pid))
            (tmp_path / name / steps.MARKER).write_text(json.dumps(row))
        (tmp_path / ".step-00000007.tmp-3").mkdir()
        put(tmp_path, 2)
        assert names(tmp_path) == [".step-00000008.tmp-0", "latest", "step-00000001", "step-00000002"]
    finally:
        other.kill()
        other.wait()
    put(tmp_path, 3, keep=9)
    assert not (tmp_path / ".step-00000008.tmp-0").exists()


@pytest.mark.drill(19)
def test_parts_of_a_killed_save_never_mix_with_the_next(tmp_path: Path) -> None:
    torn = tmp_path / ".step-00000001.tmp-0"
    torn.mkdir()
    (torn / "rank-00000.safetensors").write_bytes(b"old")
    (torn / "rank-00001.safetensors").write_bytes(b"old")
    put(tmp_path, 1)
    assert names(tmp_path / "step-00000001") == ["manifest.json", "rank-00000.safetensors"]
    assert checkpoint.verify(tmp_path / "step-00000001") == []


def save_until_killed(pipe: Connection, folder: str, first: int) -> None:
    settle_in()
    torch.set_num_threads(1)
    for step in range(first, first + 1000):
        put(Path(folder), step, size=200_000, attempt=first)
        pipe.send(step)


@pytest.mark.drill(19)
def test_a_kill_at_any_instant_leaves_latest_readable(tmp_path: Path) -> None:
    """Every kill is inside a save: the process does nothing else. At most the save going on is lost."""
    random.seed(5)
    warm(["tests.recover.test_save"])
    last, torn = 0, 0
    for _ in range(50):
        here, there = Pipe()
        victim = start(save_until_killed, (there, str(tmp_path), last + 1), "victim")
        there.close()
        assert here.poll(60), "the first save never ended"
        time.sleep(random.random() * 0.05)
        victim.kill()
        victim.join()
        while here.poll():
            try:
                last = here.recv()
            except EOFError:
                break
        found = checkpoint.latest(tmp_path)
        value = value_of(found)
        assert value in (last, last + 1), "one save may have ended without being told of"
        last = int(value)
        torn += any(p.name.startswith(".step-") for p in tmp_path.iterdir())
    assert torn > 10, "the kills did not fall into saves"
    put(tmp_path, last + 1, size=200_000)
    assert not [n for n in names(tmp_path) if n.startswith(".")]


def test_saving_changes_no_value_and_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    run = Run(None, "single")
    run.train(0, 2)
    before = run.gather()
    a, b = run.save(tmp_path / "a", 2), run.save(tmp_path / "b", 2)
    after = run.gather()
    assert all(before[n].tobytes() == after[n].tobytes() for n in before)
    shard = manifest.shard_name(0)
    assert (a.path / shard).read_bytes() == (b.path / shard).read_bytes()


def test_a_copied_snapshot_does_not_follow_training() -> None:
    from paceline.recover.buffer import Buffer
    from paceline.recover.shards import snapshot

    run = Run(None, "single")
    taken = snapshot(run.state(step=0), into=Buffer())
    kept = {p.tensor: bytes(p.item.data) for p in taken.pieces}
    run.train(0, 1)
    assert all(bytes(p.item.data) == kept[p.tensor] for p in taken.pieces)
    live = snapshot(run.state(step=0))
    assert any(bytes(p.item.data) != kept[p.tensor] for p in live.pieces)

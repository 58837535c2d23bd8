"""Joining: who is missing is named, and a world is one at a time."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from paceline.deliver.wire.record import CallRecorder
from paceline.deliver.wire.world import compact, open_world
from paceline.launch.place import Place
from paceline.ledger.outcome import Failed, Refused
from tests.pool import RankPool

CASES = "tests.deliver.wire.cases"


def _place(rank: int, size: int, listener: socket.socket) -> Place:
    port = listener.getsockname()[1]
    fd = listener.detach() if rank == 0 else None
    return Place(rank, rank, size, size, "localhost", "127.0.0.1", port, 1, 2.0, None, fd)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0,1"),
        (range(4), "0-3"),
        ([0, 2, 4, 6], "0-6:2"),
        ([1, 4, 5], "1,4,5"),
        ([3, 2, 1], "3,2,1"),
    ],
)
def test_ranks_are_written_briefly(ranks: list[int], text: str) -> None:
    assert compact(ranks) == text


def test_a_long_list_is_short_and_still_its_own() -> None:
    one, two = [*range(0, 90, 3), 91], [*range(0, 87, 3), 88, 91]
    assert len(compact(one)) < 40
    assert compact(one) != compact(two)


def test_missing_ranks_are_named_within_the_time_out() -> None:
    begin = time.monotonic()
    with pytest.raises(Failed, match="ranks 1,2 did not come to the meeting") as caught:
        open_world(_place(0, 3, socket.create_server(("127.0.0.1", 0))), "cpu", CallRecorder(), 1.0)
    assert time.monotonic() - begin < 5
    assert caught.value.exit_code == 30
    assert "waited 1 s for 3 ranks" in caught.value.seen


def test_a_store_that_nobody_serves_is_a_missing_rank_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, and never answers
        threading.Thread(target=_accept_quietly, args=(listener,), daemon=True).start()
        with pytest.raises(Failed, match="rank 0 did not come to the meeting") as caught:
            open_world(_place(1, 2, listener), "cpu", CallRecorder(), 1.0)
    assert caught.value.exit_code == 30


def _accept_quietly(listener: socket.socket) -> None:
    kept = []
    try:
        while True:
            kept.append(listener.accept())
    except OSError:
        pass


def test_a_device_without_a_backend_is_refused() -> None:
    with pytest.raises(Refused, match="no backend carries tpu tensors") as caught:
        open_world(_place(0, 1, socket.create_server(("127.0.0.1", 0))), "tpu", CallRecorder(), 1.0)
    assert (caught.value.exit_code, caught.value.allowed) == (2, "cpu, cuda")


def test_one_world_at_a_time(ranks: RankPool) -> None:
    assert ranks(1).run(f"{CASES}:twice_open") == ["this process is in a world already; close it first"]


def test_worlds_follow_one_another_with_meshes_of_the_same_shape(ranks: RankPool) -> None:
    """DTensor caches by mesh; a world that is gone must not be found in the cache of the next."""
    first = ranks(4).run(f"{CASES}:hsdp_axes")
    assert ranks(4).run(f"{CASES}:hsdp_axes") == first


def test_the_compiler_is_not_imported_by_a_world() -> None:
    """It takes seconds, and hides behind debug helpers of DTensor."""
    code = """
        import socket, sys, torch, torch.distributed as dist
        from torch.distributed.tensor import DTensor
        from paceline.deliver.wire.record import CallRecorder
        from paceline.deliver.wire.world import open_world
        from paceline.launch.place import Place
        s = socket.create_server(("127.0.0.1", 0))
        port = s.getsockname()[1]
        place = Place(0, 0, 1, 1, "h", "127.0.0.1", port, 1, 5.0, None, s.detach())
        world = open_world(place, "cpu", CallRecorder(), 5.0)
        dist.all_reduce(torch.ones(1))
        world.close()
        print("torch._dynamo" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"

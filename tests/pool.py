"""Warm rank processes for tests: started once, reused, each round with a hard limit.

``ranks(4).run("tests.deliver.cases:fn", width=8)`` calls ``fn(world, width=8)`` on four ranks that joined a
fresh world, and returns the four results. A round that fails or overruns ends its processes, so nothing it
left behind reaches the next test; after some rounds they are replaced anyway, because torch leaks threads and
descriptors with each world. Arguments and results are pickled: plain values, numpy arrays and tensors.
"""

from __future__ import annotations

import itertools
import pickle
import shutil
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe, connection, reduction
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from paceline.deliver.wire.slot import create_slots, read_slots
from paceline.launch.forkserver import find, settle_in, start, warm
from paceline.launch.place import Place

ROUNDS_PER_PROCESS = 15
GRACE_S = 2.0  # after the first failure: time for the others to report theirs
LOOPBACK = "127.0.0.1"


def warm_up() -> None:
    """Starts the forkserver with what ranks need. The first to start it in a process decides what it
    loads."""
    warm(["paceline.deliver.wire.world", "tests.pool"])


class RankError(AssertionError):
    """What a rank raised, with its traceback.

    Attributes:
        rank: the rank whose error is shown; of several, one that is not the echo of another's.
        error: class name and message.
        by_rank: every rank's traceback.
    """

    def __init__(self, rank: int, error: str, by_rank: dict[int, str]) -> None:
        super().__init__(f"rank {rank}: {error}\n{by_rank[rank]}")
        self.rank, self.error, self.by_rank = rank, error, by_rank


class RanksHung(AssertionError):
    """A round ran over its limit; the message names each rank's last collective."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    rounds: int = 0

    def end(self) -> None:
        self.process.kill()
        self.process.join(10)
        self.pipe.close()


@dataclass
class RankPool:
    """Made once a session (the ``ranks`` fixture). Calling it with a count selects that many ranks."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="paceline-pool-")))
    _workers: list[_Worker] = field(default_factory=list)
    _rounds: itertools.count[int] = field(default_factory=itertools.count)

    def __call__(self, count: int) -> Ranks:
        return Ranks(self, count)

    def workers(self, count: int) -> list[_Worker]:
        for worker in [
            w for w in self._workers if w.rounds >= ROUNDS_PER_PROCESS or not w.process.is_alive()
        ]:
            self.drop([worker])
        if len(self._workers) < count:
            warm_up()
        while len(self._workers) < count:
            here, there = Pipe()
            process = start(_serve, (there,), f"pool-{len(self._workers)}")
            there.close()
            self._workers.append(_Worker(process, here))
        return self._workers[:count]

    def drop(self, workers: list[_Worker]) -> None:
        for worker in workers:
            worker.end()
            self._workers.remove(worker)

    def next_round(self) -> int:
        return next(self._rounds)

    def close(self) -> None:
        self.drop(list(self._workers))
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class Ranks:
    """``count`` ranks of a pool."""

    pool: RankPool
    count: int

    def run(
        self, entry: str, /, timeout_s: float = 60.0, world_timeout_s: float | None = None, **kwargs: Any
    ) -> list[Any]:
        """Calls ``entry`` (``package.module:name``) on each rank and returns the results by rank.

        Args:
            timeout_s: hard limit of the round, starting processes included.
            world_timeout_s: the collectives' own time-out; by default longer than the round's, so that a hang
            is
                named by the pool and not by the backend.

        Raises:
            RankError: a rank raised, or died.
            RanksHung: the round ran over ``timeout_s``.
        """
        end = time.monotonic() + timeout_s
        workers = self.pool.workers(self.count)
        slots = self.pool.folder / f"slots-{self.pool.next_round()}"
        create_slots(slots, self.count)
        with socket.create_server((LOOPBACK, 0), backlog=self.count + 8) as listener:
            for rank, worker in enumerate(workers):
                worker.rounds += 1
                place = _place(
                    rank, self.count, listener.getsockname()[1], world_timeout_s or timeout_s + 60, slots
                )
                worker.pipe.send_bytes(pickle.dumps((entry, kwargs, place, rank == 0)))
                if rank == 0:
                    reduction.send_handle(worker.pipe, listener.fileno(), worker.process.pid)
        try:
            return self._collect(workers, end, timeout_s, slots, entry)
        except BaseException:
            self.pool.drop(workers)
            raise
        finally:
            slots.unlink(missing_ok=True)

    def _collect(
        self, workers: list[_Worker], end: float, timeout_s: float, slots: Path, entry: str
    ) -> list[Any]:
        results: dict[int, Any] = {}
        failures: dict[int, tuple[str, str, bool]] = {}
        by_pipe = {worker.pipe: rank for rank, worker in enumerate(workers)}
        while by_pipe and (left := end - time.monotonic()) > 0:
            for pipe in connection.wait(list(by_pipe), left):
                rank = by_pipe.pop(pipe)  # type: ignore[call-overload]
                try:
                    good, value = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError):
                    workers[rank].process.join(5)
                    code = workers[rank].process.exitcode
                    good, value = False, (f"process ended with exit code {code}", "", False)
                if good:
                    results[rank] = value
                else:
                    failures[rank] = value
                    end = min(end, time.monotonic() + GRACE_S)
        if failures:
            first = next((rank for rank, failure in failures.items() if not failure[2]), next(iter(failures)))
            raise RankError(first, failures[first][0], {rank: f[1] for rank, f in failures.items()})
        if by_pipe:
            calls = "\n".join(f"  {call}" for call in read_slots(slots, self.count))
            late = sorted(by_pipe.values())
            raise RanksHung(f"{entry}: ranks {late} did not return within {timeout_s:g} s\n{calls}")
        return [results[rank] for rank in range(self.count)]


def _place(rank: int, count: int, port: int, timeout_s: float, slots: Path) -> Place:
    return Place(
        rank=rank,
        local_rank=rank,
        world_size=count,
        local_world_size=count,
        host="localhost",
        store_host=LOOPBACK,
        store_port=port,
        threads=1,
        timeout_s=timeout_s,
        slot=str(slots),
    )


def _serve(pipe: Connection) -> None:
    """A pool process: round after round until its pipe closes."""
    settle_in()
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            entry, kwargs, place, serves = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        store_fd = reduction.recv_handle(pipe) if serves else None
        try:
            answer = (True, _round(find(entry), kwargs, place, store_fd))
        except BaseException as error:
            answer = (False, (f"{type(error).__name__}: {error}", traceback.format_exc(), _is_echo(error)))
        pipe.send_bytes(pickle.dumps(answer))


def _round(fn: Callable[..., Any], kwargs: dict[str, Any], place: Place, store_fd: int | None) -> Any:
    import dataclasses

    from paceline.deliver.wire.record import CallRecorder
    from paceline.deliver.wire.slot import Slot
    from paceline.deliver.wire.world import open_world

    assert place.slot is not None
    recorder = CallRecorder(None, Slot(place.slot, place.rank))
    world = open_world(dataclasses.replace(place, store_fd=store_fd), "cpu", recorder, place.timeout_s)
    try:
        return fn(world, **kwargs)
    finally:
        world.close()


def _is_echo(error: BaseException) -> bool:
    from paceline.deliver.wire.lost import explain, is_second_hand
    from paceline.ledger.outcome import PacelineError

    explained = error if isinstance(error, PacelineError) else explain(error, "a collective")
    return explained is not None and is_second_hand(explained)

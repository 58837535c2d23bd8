"""Runs ranks on this machine: one in the calling process, or several in processes of their own.

Both take the name of an entry, ``package.module:run``, and call ``run(payload, place, emit, stop) -> dict``.
The payload is plain JSON. A launcher knows nothing of models: what a rank does is behind the name.

Restarting is the caller's: it calls again with the next attempt number, and gets a fresh socket, store and
slots.
"""

from __future__ import annotations

import json
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from paceline.deliver.wire.slot import create_slots
from paceline.launch.cause import from_exception
from paceline.launch.forkserver import find, start, warm
from paceline.launch.machine import refuse_platform
from paceline.launch.place import Place
from paceline.launch.seat import header, live, set_threads
from paceline.launch.signals import Stop, Stopper
from paceline.launch.supervise import OnMessage, Watch
from paceline.ledger.outcome import PacelineError

LOOPBACK = "127.0.0.1"
Entry = Callable[[dict[str, Any], Place, Callable[[dict[str, Any]], None], Stop], dict[str, Any]]


def _ignore(rank: int, row: dict[str, Any]) -> None:
    return None


def _never() -> str | None:
    return None


def rank_log(logs: Path, rank: int) -> Path:
    """The log of one rank, all attempts."""
    return logs / f"rank-{rank:05d}.log"


def run_ranks(
    entry: str,
    payload: dict[str, Any],
    *,
    world_size: int,
    logs: Path,
    threads_per_rank: int = 1,
    timeout_s: float = 120.0,
    hang_timeout_s: float = 300.0,
    on_message: OnMessage = _ignore,
    stop: Stop = _never,
    attempt: int = 0,
    before_end: Callable[[dict[int, int], set[int]], None] = lambda living, died: None,
) -> list[dict[str, Any]]:
    """Runs ``world_size`` processes of ``entry`` on this host and returns their results by rank.

    Args:
        entry: ``package.module:name`` of the function that a rank runs.
        payload: JSON values, the same for each rank.
        logs: folder of the ranks' logs.
        threads_per_rank: compute threads of each.
        timeout_s: for the meeting and for each collective; below ``hang_timeout_s`` the ranks name a hang
            themselves, above it the launcher does.
        hang_timeout_s: how long nothing at all may move.
        on_message: gets each row that a rank emits, in this thread. Ranks' warnings come as rows of kind
        ``warn``,
            each text once, with ``host:rank|`` in front.
        stop: polled ten times a second; a reason makes every rank's own ``stop`` return it.
        attempt: 0, or the number of the restart.
        before_end: called when the ranks have failed, before those that still live (rank → process) are ended, with
            these and the ranks that ended without a word.

    Raises:
        PacelineError: the first cause. 58 a rank died, 31 hung, 30 missing at the meeting, 23 out of memory,
        what
            a rank raised itself, or 1.
        SystemExit: 130 or 143 at the second SIGINT or SIGTERM; the ranks are gone by then.
    """
    refuse_platform()
    logs.mkdir(parents=True, exist_ok=True)
    slots = logs / f".slots-{attempt}"
    create_slots(slots, world_size)
    warm([entry.partition(":")[0]], threads_per_rank)
    host = socket.gethostname()
    ranks: list[_Started] = []
    with Stopper(stop) as stopper:
        try:
            with socket.create_server((LOOPBACK, 0), backlog=world_size + 64) as listener:
                place = Place(
                    rank=0,
                    local_rank=0,
                    world_size=world_size,
                    local_world_size=world_size,
                    host=host,
                    store_host=LOOPBACK,
                    store_port=listener.getsockname()[1],
                    threads=threads_per_rank,
                    timeout_s=timeout_s,
                    slot=str(slots),
                    attempt=attempt,
                )
                for rank in range(world_size):
                    ranks.append(_start(place.at(rank), listener, entry, json.dumps(payload), logs))
            watch = Watch(ranks, host, slots, hang_timeout_s, on_message, stopper)
            try:
                return watch.run()
            except PacelineError:
                before_end(_living(ranks), watch.died)
                raise
        finally:
            for member in ranks:
                member.process.kill()
            for member in ranks:
                member.process.join(5)
                member.pipe.close()
            slots.unlink(missing_ok=True)


def run_here(
    entry: str,
    payload: dict[str, Any],
    *,
    logs: Path,
    threads_per_rank: int = 1,
    timeout_s: float = 120.0,
    hang_timeout_s: float = 300.0,
    on_message: OnMessage = _ignore,
    stop: Stop = _never,
    attempt: int = 0,
) -> list[dict[str, Any]]:
    """Runs the only rank in the calling process, so that ``print`` and ``breakpoint`` work in it.

    Arguments, result and errors are those of :func:`run_ranks`; nobody watches for a hang, and no port is
    opened.
    """
    refuse_platform()
    logs.mkdir(parents=True, exist_ok=True)
    place = Place.alone(socket.gethostname(), threads_per_rank, timeout_s, attempt)
    with open(rank_log(logs, 0), "a", encoding="utf-8") as log:
        log.write(header(place))
        log.flush()
        with Stopper(stop) as stopper:
            try:
                run: Entry = find(entry)
                threads_before = _threads()
                set_threads(threads_per_rank)
                try:
                    return [run(payload, place, lambda row: on_message(0, row), stopper)]
                finally:
                    set_threads(threads_before or threads_per_rank)
            except Exception as error:
                traceback.print_exc(file=log)
                told = from_exception(error, 0, place.host, 1)
                if isinstance(error, PacelineError):
                    raise
                raise told from error


def _living(ranks: Sequence[_Started]) -> dict[int, int]:
    pids = {rank: member.process.pid for rank, member in enumerate(ranks) if member.process.is_alive()}
    return {rank: pid for rank, pid in pids.items() if pid is not None}


@dataclass
class _Started:
    process: BaseProcess
    pipe: Connection
    log: Path


def _start(place: Place, listener: socket.socket, entry: str, payload: str, logs: Path) -> _Started:
    here, there = Pipe()
    served = listener if place.rank == 0 else None
    log = rank_log(logs, place.rank)
    process = start(live, (there, served, place, entry, payload, str(log)), f"paceline-rank-{place.rank}")
    there.close()
    return _Started(process, here, log)


def _threads() -> int | None:
    torch: Any = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())

"""Rank processes: forked from a server that has torch loaded and has done nothing else.

Title of the hard why: *never fork a process that has computed*. A child forked after its parent ran a
multi-threaded operation, or compiled anything, can hang for ever. The calling process may be a notebook or a
test that has done both, so ranks are forked from multiprocessing's forkserver, which imports the entry (and
torch with it) once, and starts no threads. The caller itself never imports torch, and its ``__main__`` is not
run again in the ranks: an entry is found by its name, so the script need not be importable.

On macOS ranks are spawned (untested); Windows is refused by :mod:`paceline.launch.machine`.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker, spawn
from multiprocessing.process import BaseProcess
from typing import Any, cast

from paceline.launch.environment import exported, for_ranks

PRELOAD = (
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh",
    "torch.distributed.tensor",
    "torch._dynamo",  # the first DTensor and the first optimizer import it: once here, or once in every rank
)
_PR_SET_PDEATHSIG = 1
_starting = threading.Lock()


def warm(preload: Sequence[str] = (), threads_per_rank: int = 1) -> None:
    """Starts the server, if there is none yet, and returns at once while it imports.

    Call it as soon as it is clear that ranks will be needed: the import of torch then overlaps with preparing
    the data. The first call of a process decides what is preloaded; a rank imports the rest itself.
    """
    if sys.platform != "linux":
        return
    with _starting, _deaf_to_notices(), exported(for_ranks(threads_per_rank)):
        multiprocessing.set_forkserver_preload([*PRELOAD, *preload])
        forkserver.ensure_running()


def start(target: Callable[..., None], args: tuple[Any, ...], name: str) -> BaseProcess:
    """A new process that runs ``target(*args)``; sockets and connections among the arguments go along."""
    context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    process: BaseProcess = context.Process(target=target, args=args, name=name, daemon=True)
    with _starting, _deaf_to_notices(), _without_main():
        process.start()
    return process


def settle_in() -> None:
    """First lines of a rank: it dies with its launcher, and leaves Ctrl-C and SIGTERM to it.

    A batch system sends its notice to every process of a job. What it means is the launcher's to say: the step is
    finished and saved. Whoever wants a rank dead has SIGKILL.

    The forkserver ends when the last write end of its pipe is closed. Each child inherits one, to start
    children of its own, which would keep the server alive after the launcher's death: a rank gives it up.
    Then the chain holds: launcher gone, so the server ends, so the kernel kills the ranks, whatever they are
    doing.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform != "linux":
        return
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent or parent == 1:
        os._exit(128 + signal.SIGKILL)


def find(entry: str) -> Callable[..., Any]:
    """The function that ``package.module:name`` names."""
    module, _, name = entry.partition(":")
    if not name:
        raise ValueError(f"an entry is package.module:name, not {entry!r}")
    found = getattr(importlib.import_module(module), name)
    if not callable(found):
        raise TypeError(f"{entry} is not a function")
    return cast(Callable[..., Any], found)


@contextmanager
def _deaf_to_notices() -> Iterator[None]:
    """What is started inside never sees Ctrl-C or SIGTERM, which a terminal and a batch system send to every process.

    The caller gets them after.

    The server ignores Ctrl-C once it has imported torch, and until then would die of it with a traceback; of SIGTERM it
    would die always, and its ranks with it. Starting the resource tracker lets both through again, so that it is there
    first. It takes back what killed ranks have left,
    the semaphores of a compiler's workers, and has no need to warn of it.
    """
    with exported({"PYTHONWARNINGS": "ignore:resource_tracker:UserWarning"}):
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_main() -> Iterator[None]:
    """Leaves the caller's ``__main__`` out of what a child prepares; multiprocessing has no switch for it."""
    original = spawn.get_preparation_data

    def prepare(name: str) -> dict[str, Any]:
        data = original(name)
        return {key: value for key, value in data.items() if not key.startswith("init_main")}

    spawn.get_preparation_data = prepare
    try:
        yield
    finally:
        spawn.get_preparation_data = original

"""What the ranks of the launcher's tests run. Imports torch only where a case needs it: most do not."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.launch.place import Place

Emit = Callable[[dict[str, Any]], None]
Stop = Callable[[], str | None]


def whoami(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    print(f"hello from {place.rank}")
    print("and to stderr", file=sys.stderr)
    os.system("echo from a child of the rank")
    warnings.warn("planted warning", stacklevel=1)
    emit({"kind": "train", "rank": place.rank, "step": 1})
    return {
        "rank": place.rank,
        "payload": payload,
        "attempt": place.attempt,
        "pid": os.getpid(),
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "omp": os.environ.get("OMP_NUM_THREADS"),
    }


def fail(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    from paceline.ledger.outcome import Exit, Preempted, Refused

    if place.rank == payload["rank"]:
        if payload["how"] == "raise":
            raise ValueError("planted")
        if payload["how"] == "refuse":
            raise Refused("planted", exit_code=Exit.DATA, key="data.train", seen="x", rule="y", use="z")
        if payload["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if payload["how"] == "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        if payload["how"] == "exit":
            sys.exit(3)
        if payload["how"] == "memory":
            raise MemoryError("planted")
    if payload["how"] == "preempt":
        time.sleep(0.5 * place.rank)
        raise Preempted("planted", exit_code=Exit.PREEMPTED)
    time.sleep(600)
    return {}


def until_stopped(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    emit({"kind": "event", "event": "ready", "pid": os.getpid()})
    while (reason := stop()) is None:
        time.sleep(0.01)
    if payload.get("deaf"):
        time.sleep(600)
    return {"reason": reason}


def collectives(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    """Steps of all-reduce; at ``at`` the rank ``rank`` does ``how``."""
    import torch
    import torch.distributed as dist

    from paceline.deliver.wire.record import CallRecorder
    from paceline.deliver.wire.slot import Slot
    from paceline.deliver.wire.world import open_world

    assert place.slot is not None
    if payload.get("absent") == place.rank:
        time.sleep(600)
    world = open_world(place, "cpu", CallRecorder(None, Slot(place.slot, place.rank)), place.timeout_s)
    emit({"kind": "event", "event": "joined", "pid": os.getpid()})
    x = torch.ones(8)
    for step in range(payload.get("steps", 5)):
        world.at_step(step)
        if step == payload.get("at") and place.rank == payload.get("rank"):
            if payload["how"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if payload["how"] == "raise":
                raise ValueError("planted")
            if payload["how"] == "sleep":
                time.sleep(600)
            if payload["how"] == "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            if payload["how"] == "skip":
                time.sleep(0.05)
                continue
        dist.all_reduce(x.fill_(1.0))
        time.sleep(payload.get("pause", 0.0))
    world.close()
    return {"sum": x[0].item(), "pid": os.getpid()}


def listening(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    """The listening sockets of this process while its world is open."""
    from paceline.deliver.wire.record import CallRecorder
    from paceline.deliver.wire.world import open_world
    from tests.launch.sockets import listeners

    world = open_world(place, "cpu", CallRecorder(), place.timeout_s)
    emit({"kind": "event", "event": "open"})
    found = listeners()
    world.wait_for_the_last()
    world.close()
    return {"listeners": found}


def wrong_size(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from paceline.deliver.wire.record import CallRecorder
    from paceline.deliver.wire.slot import Slot
    from paceline.deliver.wire.world import open_world

    assert place.slot is not None
    open_world(place, "cpu", CallRecorder(None, Slot(place.slot, place.rank)), place.timeout_s)
    dist.all_reduce(torch.ones(4 if place.rank else 4096))
    return {}


def disagreeing(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    """One rank sends more, or calls another operation; whoever gets a result writes that it has used it."""
    import torch
    import torch.distributed as dist

    from paceline.deliver.wire.record import CallRecorder
    from paceline.deliver.wire.slot import Slot
    from paceline.deliver.wire.world import open_world

    assert place.slot is not None
    open_world(place, "cpu", CallRecorder(None, Slot(place.slot, place.rank)), place.timeout_s)
    x = torch.ones(4096)
    if payload["op"] == "all_reduce":
        dist.all_reduce(x if place.rank == payload["larger"] else x[:4])
    elif place.rank == payload["larger"]:
        dist.all_reduce(x)
    else:
        dist.all_gather_into_tensor(torch.empty(2 * 4096), x)
    (Path(place.slot).parent / f"used-{place.rank}").touch()
    time.sleep(600)
    return {}


def threads_now(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    import torch

    if payload.get("fail"):
        raise ValueError("planted")
    return {"threads": torch.get_num_threads()}


def whole_answer(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    return {"bad": object()}


def server_threads(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    """Threads of the forkserver that this rank was forked from, and whether it had torch."""
    with open(f"/proc/{os.getppid()}/status") as status:
        (line,) = [line for line in status if line.startswith("Threads:")]
    return {"threads": int(line.split()[1]), "preloaded": "torch._dynamo" in sys.modules}

"""What the ranks of the wire's tests run."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # registers torch.ops._c10d_functional
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from paceline.deliver.wire.slot import read_slots
from paceline.deliver.wire.world import World
from paceline.ledger.spans import Ledger
from tests.launch.sockets import listeners


def add_up(world: World, start: float = 0.0) -> list[float]:
    x = torch.full((3,), start + world.rank)
    dist.all_reduce(x)
    return x.tolist()


def raise_on(world: World, rank: int) -> float:
    if world.rank == rank:
        raise ValueError("planted")
    return add_up(world)[0]


def die_on(world: World, rank: int) -> float:
    add_up(world)
    if world.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return add_up(world)[0]


def stay_away(world: World, rank: int) -> float:
    add_up(world)
    if world.rank == rank:
        time.sleep(600)
    return add_up(world)[0]


def pid_of(world: World) -> int:
    return os.getpid()


def _recorded(world: World) -> Ledger:
    ledger = Ledger(None, world.rank)
    ledger.started()
    world.recorder.ledger = ledger
    return ledger


def every_verb(world: World) -> tuple[dict[str, Any], list[tuple[str, int, int]]]:
    """Each collective torch has, called the way users call it, and what the wire saw: verb, number, bytes."""
    rows, rank, size = _rows(world), world.rank, world.size
    group = dist.group.WORLD
    assert group is not None
    out: dict[str, Any] = {}
    x = torch.full((4,), float(rank))
    dist.all_reduce(x)
    out["all_reduce"] = x.tolist()
    y = torch.full((4,), float(rank))
    dist.broadcast(y, 1)
    out["broadcast"] = y.tolist()
    parts = [torch.empty(2) for _ in range(size)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    out["all_gather"] = torch.cat(parts).tolist()
    flat = torch.empty(2 * size)
    dist.all_gather_into_tensor(flat, torch.full((2,), float(rank)))
    out["all_gather_into_tensor"] = flat.tolist()
    piece = torch.empty(2)
    dist.reduce_scatter_tensor(piece, torch.arange(2.0 * size))
    out["reduce_scatter_tensor"] = piece.tolist()
    swapped = torch.empty(size)
    dist.all_to_all_single(swapped, torch.arange(float(size)) + 10 * rank)
    out["all_to_all_single"] = swapped.tolist()
    z = torch.full((1,), float(rank))
    dist.reduce(z, 0)
    out["reduce"] = z.tolist() if rank == 0 else None
    gathered = [torch.empty(1) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.full((1,), float(rank)), gathered, 0)
    out["gather"] = torch.cat(gathered).tolist() if gathered else None
    given = torch.empty(1)
    dist.scatter(given, [torch.full((1,), float(r)) for r in range(size)] if rank == 0 else None, 0)
    out["scatter"] = given.tolist()
    dist.barrier()
    ops, name = torch.ops._c10d_functional, group.group_name  # what DTensor and compiled code call
    out["functional all_reduce"] = ops.wait_tensor(ops.all_reduce(torch.ones(2), "sum", name)).tolist()
    taken = ops.all_gather_into_tensor(torch.ones(1) * rank, size, name)
    out["functional all_gather"] = ops.wait_tensor(taken).tolist()
    part = ops.reduce_scatter_tensor(torch.ones(size), "sum", size, name)
    out["functional reduce_scatter"] = ops.wait_tensor(part).tolist()
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    out["objects"] = objects
    return out, [(row.op, row.seq, row.bytes) for row in rows]


def ring(world: World) -> list[tuple[str, str, int]]:
    """Everybody sends to the next and receives from the one before, three times, among other calls."""
    rows = _rows(world)
    succ, pred = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
        got = torch.empty(1)
        ops = [
            dist.P2POp(dist.isend, torch.full((1,), float(world.rank)), succ),
            dist.P2POp(dist.irecv, got, pred),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert got.item() == pred
    return [(c.op, c.group, c.seq) for c in rows]


def _rows(world: World) -> list[Any]:
    rows: list[Any] = []
    ledger = _recorded(world)
    ledger.call = rows.append  # type: ignore[method-assign, assignment]
    return rows


def ddp_books(world: World, late_s: float, hook: bool = False) -> dict[str, Any]:
    """A DDP step of three buckets in which rank 1 comes late; the rows and the seconds by account."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(3)))
    ddp = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=0.2)
    if hook:
        ddp.register_comm_hook(None, lambda state, bucket: _comm_hook(bucket))
    for _ in range(2):
        ddp(torch.randn(4, 256)).sum().backward()
    rows = _rows(world)
    ledger = world.recorder.ledger
    assert isinstance(ledger, Ledger)
    world.name_axis(None, "dp")
    dist.barrier()
    rows.clear()
    ledger.close_step(0)
    if world.rank == 1:
        with ledger.span("idle", "planted"):
            _wait_until_sent(world, 0)
            time.sleep(late_s)
    with ledger.span("compute", "backward"):
        ddp(torch.randn(4, 256)).sum().backward()
    seconds, rows = ledger.close_step(1), list(rows)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    plain = [grad.clone() for grad in grads]
    for grad in plain:
        dist.all_reduce(grad)
    same = all(torch.allclose(a / world.size, b) for a, b in zip(plain, grads, strict=True))
    return {"seconds": seconds, "rows": [tuple(r) for r in rows], "synchronised": same}


def _wait_until_sent(world: World, rank: int) -> None:
    """Until that rank is inside an all-reduce: lateness that does not depend on how busy the machine is."""
    slot = world.recorder.slot
    assert slot is not None
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        last = read_slots(slot.path, world.size)[rank]
        if last.inside and last.op == "all_reduce":
            return
        time.sleep(0.002)
    raise TimeoutError(f"rank {rank} has not sent anything")


def _comm_hook(bucket: Any) -> Any:
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def hsdp_axes(world: World) -> dict[tuple[str, str], set[str]]:
    """Two steps of FSDP2 on a dp × fsdp mesh; which verbs ran on which axis and in which group."""
    mesh = world.mesh({"dp": 2, "fsdp": world.size // 2})
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    rows = _rows(world)
    for _ in range(2):
        model(torch.randn(4, 64)).sum().backward()
    found: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        found.setdefault((row.axis, row.op), set()).add(row.group)
    return found


def overlapped(world: World, compute_s: float) -> list[tuple[str, int, float, bool]]:
    """One all-reduce waited for after other work, one whose future is taken, one that nobody asks about."""
    rows = _rows(world)
    x = torch.ones(10)
    work = dist.all_reduce(x, async_op=True)
    time.sleep(compute_s)
    work.wait()
    future = dist.all_reduce(x, async_op=True).get_future()
    future.wait()
    dropped = dist.all_reduce(x, async_op=True)
    while not dropped.is_completed():
        time.sleep(0.001)
    del dropped
    dist.barrier()
    deadline = time.monotonic() + 5
    while len(rows) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    return sorted((r.op, r.seq, r.leave_s - r.enter_s, r.wait_start_s is not None) for r in rows)


def wrong_size(world: World) -> str:
    dist.all_reduce(torch.ones(4 if world.rank else 4096))
    return "no error"


def late_peer(world: World) -> str:
    if world.rank == 0:
        time.sleep(4)
        return "late"
    dist.all_reduce(torch.ones(4))
    return "no error"


def open_ports(world: World) -> list[str]:
    """Every listening TCP socket of this process, with the groups of a mesh open."""
    world.mesh({"dp": 2, "fsdp": world.size // 2})
    found = listeners()
    dist.barrier()
    return found


def twice_open(world: World) -> str:
    from paceline.deliver.wire.record import CallRecorder
    from paceline.deliver.wire.world import open_world

    try:
        open_world(None, "cpu", CallRecorder(), 1.0)  # type: ignore[arg-type]
    except RuntimeError as error:
        return str(error)
    return "no error"


def unequal_groups(world: World) -> float:
    """Ranks 0 and 1 make a group that rank 2 knows nothing of; then 0 and 2 make one. Sum of rank + 1 there."""
    value = torch.tensor([float(world.rank + 1)])
    if world.rank < 2:
        world.group("dp", (0, 1))
    if world.rank != 1:
        dist.all_reduce(value, group=world.group("pp", (0, 2)))
        return float(value) - 1.0
    return float(value) - 1.0

"""A rank joins its world: the store, the process groups, their names.

Title of the hard why: *no port is open to another host*. A torch store listens on every interface unless it
is given a socket, and gloo listens on whatever the host's name resolves to. So the launcher binds the store's
socket to 127.0.0.1 before it starts anybody (which also ends the race for a free port), rank 0 serves on that
very socket, and gloo's device is made for 127.0.0.1. Keys are prefixed by the attempt, so a restart never
meets the dead.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from paceline.deliver.wire.forget import forget_meshes
from paceline.deliver.wire.group import Wire
from paceline.deliver.wire.lost import explain
from paceline.deliver.wire.naming import Names
from paceline.deliver.wire.record import CallRecorder
from paceline.ledger.outcome import Exit, Failed, Refused
from paceline.ledger.plural import many

BACKEND = "paceline"
LOOPBACK = "127.0.0.1"


class Seat(Protocol):
    """What a rank must know to join (:class:`paceline.launch.place.Place` has it)."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def store_host(self) -> str: ...
    @property
    def store_port(self) -> int: ...
    @property
    def store_fd(self) -> int | None: ...
    @property
    def attempt(self) -> int: ...


Backends = dict[str, tuple[Any, Any]]
Connect = Callable[[str, dist.Store, int, int, timedelta], tuple[Any, Backends]]
"""(device type, store, rank, size, time-out) → what carries the calls, and the backends by device type."""


class World:
    """All ranks of a run, seen from one of them.

    A world of one has process groups too (``single`` needs none of them and never opens a world). ``connect``
    reaches the peers of one group: over sockets, or the made-up ones of :mod:`.fake`.
    """

    def __init__(
        self, seat: Seat, device_type: str, recorder: CallRecorder, timeout_s: float, connect: Connect
    ) -> None:
        self._connect = connect
        self.rank, self.size = seat.rank, seat.world_size
        self.device_type, self.recorder, self.timeout_s = device_type, recorder, timeout_s
        self.store: dist.Store | None = None
        self._groups_of: dict[str, int] = {}
        self._names = Names()

    def name_axis(self, group: dist.ProcessGroup | None, axis: str) -> None:
        """Calls on ``group`` are booked under ``axis`` from now on. A group that spans the world may be
        shared by two names of torch's (a one-dimensional mesh reuses the default group): the last name
        counts."""
        wire = group if group is not None else dist.group.WORLD
        if not isinstance(wire, Wire):
            raise TypeError(f"{wire!r} was not made by the wire")
        wire.record.axis = axis

    def mesh(self, degrees: Mapping[str, int]) -> DeviceMesh:
        """A mesh whose dimensions are named and sized by ``degrees``, outermost first, its groups named."""
        mesh = init_device_mesh(self.device_type, tuple(degrees.values()), mesh_dim_names=tuple(degrees))
        for axis in degrees:
            self.name_axis(mesh.get_group(axis), axis)
        return mesh

    def group(self, axis: str, ranks: Sequence[int]) -> dist.ProcessGroup:
        """A new group of these ranks, booked under ``axis``; only its members call, in the same order."""
        with self._names.next_of(ranks):
            group = dist.new_group(list(ranks), use_local_synchronization=True)
        assert isinstance(group, Wire)
        self.name_axis(group, axis)
        # as in wait_for_the_last: nobody leaves while a peer still connects
        group.backend("cpu").barrier().wait()
        return group

    def wait_for_the_last(self) -> None:
        """Nobody goes on before everybody is connected: a rank that had nothing to send could otherwise be
        gone while its peers still connect to it. Over the sockets and not the store, which may end with rank
        0."""
        wire = dist.group.WORLD
        assert isinstance(wire, Wire)
        wire.backend("cpu").barrier().wait()

    def at_step(self, step: int) -> None:
        self.recorder.at_step(step)

    def close(self) -> None:
        """Leaves: groups, store and slot are closed. Safe after a failure, and twice."""
        global _open
        if dist.is_initialized():
            dist.destroy_process_group()
            forget_meshes()
        self.store = None
        if self.recorder.slot is not None:
            self.recorder.slot.close()
            self.recorder.slot = None
        if _open is self:
            _open = None

    def make_group(self, options: Any, _: Any = None) -> Wire:
        """One group for torch's ``new_group``; ``options`` is its ``_DistributedBackendOptions``."""
        store, rank, size = options.store, options.group_rank, options.group_size
        timeout: timedelta = options.timeout
        inner, backends = self._connect(self.device_type, store, rank, size, timeout)
        members = options.global_ranks_in_group or range(self.size)
        record = self.recorder.group(self._group_name(members), timeout_s=timeout.total_seconds())
        return Wire(inner, backends, record)

    def _group_name(self, members: Sequence[int]) -> str:
        """``0-6:2``; the second group of the same ranks is ``0-6:2#2``. The same on each member."""
        name = compact(members)
        count = self._groups_of[name] = self._groups_of.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"


_open: World | None = (
    None  # torch's backend registry is one per process, so the world that it makes groups for is too
)


def _make(options: Any, backend_options: Any = None) -> Wire:
    if _open is None:
        raise RuntimeError("a process group was asked of the wire before open_world")
    return _open.make_group(options, backend_options)


def open_world(seat: Seat, device_type: str, recorder: CallRecorder, timeout_s: float) -> World:
    """Joins the world; returns when each rank is there.

    Args:
        seat: rank, world size, and where the store is. Rank 0 serves the store on ``store_fd``, a listening
        socket. device_type: ``cpu`` (gloo) or ``cuda`` (nccl, and gloo for tensors in host memory). recorder:
        gets every call of every group. timeout_s: for the meeting, and for each collective.

    Raises:
        Failed: 30, naming the ranks that did not come within ``timeout_s``.
        Refused: 2, a device type that has no backend here.
    """
    if device_type not in _BACKENDS:
        raise Refused(
            f"no backend carries {device_type} tensors",
            exit_code=Exit.USAGE,
            key="run.device",
            seen=device_type,
            allowed=", ".join(_BACKENDS),
            use='run.device = "cpu"',
        )
    if dist.is_initialized() or _open is not None:
        raise RuntimeError("this process is in a world already; close it first")
    world = World(seat, device_type, recorder, timeout_s, _connect)
    store = dist.PrefixStore(f"attempt-{seat.attempt}", _meet(seat, timeout_s))
    _wait_for_all(store, seat, timeout_s)
    try:
        join(world, store)
        world.wait_for_the_last()
    except BaseException as error:
        world.close()
        if isinstance(error, RuntimeError):
            raise (explain(error, "the meeting", timeout_s) or error) from error
        raise
    return world


def join(world: World, store: dist.Store) -> None:
    """Make ``world`` this process's: torch's groups are made by it from now on."""
    global _open
    dist.Backend.register_backend(BACKEND, _make, extended_api=True, devices=list(_BACKENDS))
    _open = world
    dist.init_process_group(
        BACKEND,
        store=store,
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=world.timeout_s),
    )
    world.store = store


def _meet(seat: Seat, timeout_s: float) -> dist.TCPStore:
    """The store, served by rank 0, joined by the others.

    Title of the hard why: *a bound socket accepts before anybody serves it*. torch's client connects to it
    and then waits without a limit for the first answer, which never comes when rank 0 is missing. So the
    others join on a thread, and leave it behind when the time is up.
    """
    made: list[dist.TCPStore] = []
    failed: list[BaseException] = []

    def join() -> None:
        try:
            made.append(_store(seat, timeout_s))
        except BaseException as error:
            failed.append(error)

    if seat.rank == 0:
        return _store(seat, timeout_s)
    thread = threading.Thread(target=join, name="paceline-meet", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if made:
        return made[0]
    raise _missing(
        [0], seat, timeout_s, str(failed[0]).splitlines()[0] if failed else "its store does not answer"
    )


def _store(seat: Seat, timeout_s: float) -> dist.TCPStore:
    serves = seat.rank == 0
    if serves and seat.store_fd is None:
        raise ValueError("rank 0 serves the store on a socket that was bound before; its seat has none")
    return dist.TCPStore(
        seat.store_host,
        seat.store_port,
        seat.world_size,
        is_master=serves,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=seat.store_fd if serves else None,
    )


def _wait_for_all(store: dist.Store, seat: Seat, timeout_s: float) -> None:
    keys = [f"here/{rank}" for rank in range(seat.world_size)]
    end = time.monotonic() + timeout_s
    try:
        store.set(keys[seat.rank], "1")
        store.wait(keys, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        if time.monotonic() < end - 0.5:  # not a time-out: the store itself is gone, and rank 0 with it
            raise _missing([0], seat, timeout_s, str(error).splitlines()[0]) from error
        raise _missing(_absent(store, keys), seat, timeout_s, "") from error


def _absent(store: dist.Store, keys: list[str]) -> list[int]:
    try:
        return [rank for rank, key in enumerate(keys) if not store.check([key])]
    except RuntimeError:
        return [0]


def _missing(ranks: list[int], seat: Seat, timeout_s: float, why: str) -> Failed:
    names = compact(ranks)
    return Failed(
        f"rank {names} did not come to the meeting"
        if len(ranks) == 1
        else f"ranks {names} did not come to the meeting",
        exit_code=Exit.PEERS,
        seen=f"rank {seat.rank} waited {timeout_s:g} s for {many(seat.world_size, 'rank')}"
        + (f"; {why}" if why else ""),
        rule=f"each rank reaches {seat.store_host}:{seat.store_port} within {timeout_s:g} s",
        use=f"the log of rank {ranks[0] if ranks else 0}: it says how far it got",
    )


def compact(ranks: Sequence[int]) -> str:
    """``0-3``, ``0-6:2`` (every second), ``1,4,5``; a long list without a stride is cut and counted."""
    ranks = list(ranks)
    if len(ranks) < 2:
        return ",".join(map(str, ranks))
    step = ranks[1] - ranks[0]
    if len(ranks) > 2 and step > 0 and ranks == list(range(ranks[0], ranks[-1] + 1, step)):
        return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step > 1 else "")
    text = ",".join(map(str, ranks))
    if len(text) <= 40:
        return text
    return f"{ranks[0]},{ranks[1]},…{ranks[-1]} ({len(ranks)}, {zlib.crc32(text.encode()):08x})"


def _gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> tuple[Any, Any]:
    from torch._C._distributed_c10d import ProcessGroupGloo

    options: Any = getattr(ProcessGroupGloo, "_Options")()  # noqa: B009 (the stub calls it Options)
    options._timeout = timeout
    options._devices = [ProcessGroupGloo.create_device(hostname=LOOPBACK, lazy_init=False)]
    return dist.ProcessGroup.BackendType.GLOO, ProcessGroupGloo(store, rank, size, options)


def _nccl(store: dist.Store, rank: int, size: int, timeout: timedelta) -> tuple[Any, Any]:
    from torch._C._distributed_c10d import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroup.BackendType.NCCL, ProcessGroupNCCL(store, rank, size, options)


_BACKENDS = {"cpu": _gloo, "cuda": _nccl}


def _connect(
    device_type: str, store: dist.Store, rank: int, size: int, timeout: timedelta
) -> tuple[dist.ProcessGroup, Backends]:
    """A plain group over the device's own backend, and gloo for host memory beside it."""
    inner = dist.ProcessGroup(store, rank, size)
    kinds = dict.fromkeys((device_type, "cpu"))
    backends = {
        kind: _BACKENDS[kind](dist.PrefixStore(f"{kind}/", store), rank, size, timeout) for kind in kinds
    }
    for kind, (name, backend) in backends.items():
        inner._register_backend(torch.device(kind), name, backend)
    inner._set_default_backend(backends[device_type][0])
    return inner, backends

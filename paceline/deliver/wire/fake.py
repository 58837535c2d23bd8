"""A world of one real rank: its peers are made up, and answer at once.

The dry run joins it as any rank of up to 16 384. Groups, axes and the wire's recorder are the real ones, so every
collective is numbered and counted as in a run; nothing is sent and nobody is waited for.

Title of the hard why: *peers hold what this rank holds*. A step decides little by values it has received, but a
few it must know: how many tokens go to which expert, whether the loss is finite. The one assumption that needs no
data is that each peer would have sent what this rank would have sent in its place. So a small message is answered
by that rule: a sum is the value times the ranks, a gathered tensor is copies of the own part, an exchange brings
from everybody what this rank has for itself; a message that this rank has no counterpart of is ones. Tensors too large
to be a decision keep whatever they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.deliver.wire import world as real
from paceline.deliver.wire.record import CallRecorder
from paceline.deliver.wire.world import Backends, World

DECISION_NUMBERS = 1 << 14
"""Messages of up to so many numbers are answered with values; larger ones are weights and activations."""


@dataclass(frozen=True)
class FakeSeat:
    """A rank of a world that is not there."""

    rank: int
    world_size: int
    store_host: str = ""
    store_port: int = 0
    store_fd: int | None = None
    attempt: int = 0


def open_fake_world(rank: int, world_size: int, recorder: CallRecorder, device_type: str = "cpu") -> World:
    """Joins a world of ``world_size`` as ``rank``; at once, alone, without a socket.

    Args:
        recorder: gets every call of every group, as in a real world.
        device_type: of the tensors that will be sent; they may be fake themselves.
    """
    if dist.is_initialized():
        raise RuntimeError("this process is in a world already; close it first")
    world = World(FakeSeat(rank, world_size), device_type, recorder, 60.0, _connect)
    real.join(world, dist.HashStore())
    return world


class Peers:
    """What a :class:`~paceline.deliver.wire.group.Wire` speaks to instead of a group with backends."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def get_group_store(self) -> dist.Store:
        return self._store

    def allreduce(self, tensors: Any, options: Any = None) -> dist.Work:
        """In place: the same from everybody."""
        reduce = getattr(options, "reduceOp", dist.ReduceOp.SUM)
        for tensor in _list(tensors):
            if reduce == dist.ReduceOp.SUM and _decides(tensor):
                tensor.mul_(self._size)
        return Answered(_list(tensors))

    def all_gather_single(self, out: Any, part: Any, *_: Any, **__: Any) -> dist.Work:
        """Copies of the own part."""
        if _decides(out):
            out.view(self._size, -1).copy_(part.reshape(1, -1).expand(self._size, -1))
        return Answered([out])

    def reduce_scatter_single(self, part: Any, whole: Any, options: Any = None, **_: Any) -> dist.Work:
        """The own part of the sum."""
        if _decides(whole):
            total = getattr(options, "reduceOp", dist.ReduceOp.SUM) == dist.ReduceOp.SUM
            own = whole.reshape(self._size, -1)[self._rank]
            part.view(-1).copy_(own * self._size if total else own)
        return Answered([part])

    def all_to_all_single(
        self,
        out: Any,
        rows: Any,
        out_splits: Sequence[int] = (),
        in_splits: Sequence[int] = (),
        *_: Any,
        **__: Any,
    ) -> dist.Work:
        """From everybody what this rank has for itself. With splits nothing is copied: only equal shares can be."""
        if _decides(out) and not out_splits and not in_splits:
            own = rows.reshape(self._size, -1)[self._rank]
            out.view(self._size, -1).copy_(own.expand(self._size, -1))
        return Answered([out])

    def recv(self, tensors: Any, *_: Any) -> dist.Work:
        """Ones: yes, where a peer is asked for its vote."""
        for tensor in _list(tensors):
            if _decides(tensor):
                tensor.fill_(1)
        return Answered(_list(tensors))

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    def __getattr__(self, verb: str) -> Any:
        """Every other verb of a group: done, with the tensors as they are."""
        if verb.startswith("__") or not hasattr(dist.ProcessGroup, verb):
            raise AttributeError(verb)
        return lambda *args, **_: Answered(_list(args[0]) if args else [])


class Answered(dist.Work):
    """A collective that was over when it began."""

    def __init__(self, result: list[Any]) -> None:
        super().__init__()
        self._result = result

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._result)
        return future

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> Any:
        return None

    def result(self) -> list[Any]:
        return self._result

    def synchronize(self) -> None:
        return None

    def block_current_stream(self) -> None:
        return None

    def source_rank(self) -> int:
        return 0

    def _source_rank(self) -> int:
        return 0


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _decides(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and 0 < tensor.numel() <= DECISION_NUMBERS


def _connect(
    device_type: str, store: dist.Store, rank: int, size: int, timeout: timedelta
) -> tuple[Peers, Backends]:
    """Made-up peers. The registered backends are torch's own fake ones: torch asks them for properties only."""
    from torch._C import _distributed_c10d

    fake: Any = _distributed_c10d.FakeProcessGroup  # the stub lacks two of its forms
    kind = dist.ProcessGroup.BackendType.CUSTOM
    made = {name: fake._create_internal(rank, size, fake.Options()) for name in {device_type, "cpu"}}
    backends: Backends = {name: (kind, backend) for name, backend in made.items()}
    return Peers(store, rank, size), backends

"""The one process group of Paceline: forwards to the backend, and records.

Title of the hard why: *the wrapper is the group, not a layer in it*. torch returns a Python subclass of
``ProcessGroup`` from ``init_process_group`` and ``new_group`` as it is, and calls its methods from Python,
from C++ (DDP, functional collectives) and from autograd. Method names differ between releases (2.13 calls
``all_gather_single`` where 2.11 calls ``_allgather_base``), so each name that the installed torch has is
overridden and forwarded to the same name of a plain ``ProcessGroup`` that holds the backends. That inner
group also picks the backend by the device of the tensors, and refuses a device that it has no backend for.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline.deliver.wire.futures import waited, watch
from paceline.deliver.wire.lost import explain
from paceline.deliver.wire.record import Call, GroupRecorder

_NO_TIMEOUT = timedelta(0)

# Each verb under one name, whatever torch calls it in this release.
VERBS: dict[str, str] = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
}


_TENSOR_ARGUMENTS = {
    "barrier": 0,
    "all_reduce": 1,
    "broadcast": 1,
    "reduce": 1,
    "send": 1,
    "recv": 1,
}  # else 2


class Wire(dist.ProcessGroup):
    """A process group over ``inner``, which holds the backends.

    Args:
        inner: a plain torch group with a backend for each device type.
        backends: the same backends by device type, registered here too, so that torch finds their properties.
        record: numbers and times the calls.
    """

    def __init__(
        self, inner: dist.ProcessGroup, backends: dict[str, tuple[Any, Any]], record: GroupRecorder
    ) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]  # the stub lacks this form
        self.inner, self.record, self._backends = inner, record, backends
        for device_type, (kind, backend) in backends.items():
            self._register_backend(torch.device(device_type), kind, backend)

    def backend(self, device_type: str) -> Any:
        """The backend itself, for what is not to be recorded."""
        return self._backends[device_type][1]

    def get_group_store(self) -> dist.Store:
        return self.inner.get_group_store()

    def getBackendName(self) -> str:
        return "+".join(str(backend.name()) for _, backend in self._backends.values())

    def name(self) -> str:
        return self.getBackendName()


def _forward(method: str, verb: str) -> Callable[..., Any]:
    point_to_point = verb in ("send", "recv")
    tensor_arguments = _TENSOR_ARGUMENTS.get(verb, 2)

    def call(self: Wire, *args: Any, **kwargs: Any) -> Any:
        pair = _pair(self, method, args) if point_to_point else ""
        entry = self.record.begin(verb, payload_bytes(args, tensor_arguments), pair)
        with entry.account:
            try:
                work = getattr(self.inner, method)(*args, **kwargs)
            except RuntimeError as error:
                raise (explain(error, str(entry), entry.timeout_s) or error) from error
        if work is None:
            entry.close()
            return None
        return TimedWork(work, entry)

    call.__name__ = call.__qualname__ = method
    return call


for _method, _verb in VERBS.items():
    if hasattr(dist.ProcessGroup, _method):
        setattr(Wire, _method, _forward(_method, _verb))


class TimedWork(dist.Work):
    """The backend's handle; ``wait`` is where a rank stands still."""

    def __init__(self, inner: dist.Work, entry: Call) -> None:
        super().__init__()
        self.inner, self.entry = inner, entry

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        entry = self.entry
        with entry.account:
            start = entry.clock()
            try:
                done = self.inner.wait(timeout) if timeout else self.inner.wait()
            except RuntimeError as error:
                raise (explain(error, str(entry), entry.timeout_s) or error) from error
            if entry.is_open:
                end = entry.clock()
                entry.wait_s = (start, end)
                waited(start, end)
                entry.complete(end)
                entry.close()
        return done

    def get_future(self) -> torch.futures.Future[Any]:
        future = self.inner.get_future()
        if self.entry.is_open:
            watch(future, self.entry)
        return future

    def __del__(self) -> None:
        entry = self.__dict__.get("entry")
        if entry is not None and entry.is_open and not entry.has_future:
            entry.close()

    def is_completed(self) -> bool:
        return self.inner.is_completed()

    def is_success(self) -> bool:
        return self.inner.is_success()

    def exception(self) -> Any:
        return self.inner.exception()

    def result(self) -> list[torch.Tensor]:
        return self.inner.result()

    def synchronize(self) -> None:
        self.inner.synchronize()

    def source_rank(self) -> int:
        return self.inner.source_rank()

    def _source_rank(self) -> int:
        return self.inner._source_rank()

    def block_current_stream(self) -> None:
        self.inner.block_current_stream()


def payload_bytes(args: tuple[Any, ...], count: int = 2) -> int:
    """The larger of what a rank hands in and what it gets: the first ``count`` arguments, tensors or (nested)
    lists of them."""
    if count == 0 or not args:
        return 0
    first = _bytes(args[0])
    return first if count == 1 or len(args) < 2 else max(first, _bytes(args[1]))


def _bytes(value: Any) -> int:
    kind = type(value)
    if kind is torch.Tensor:
        return int(value.nbytes)
    if kind is list or kind is tuple:
        return _bytes(value[0]) if len(value) == 1 else sum(map(_bytes, value))
    return int(value.nbytes) if isinstance(value, torch.Tensor) else 0


def _pair(wire: Wire, method: str, args: tuple[Any, ...]) -> str:
    here = wire.inner.rank()
    if method == "send":
        return f"{here}>{args[1]}"
    return f"any>{here}" if method == "recv_anysource" else f"{args[1]}>{here}"

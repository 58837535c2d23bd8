"""What a rank holds at every moment, by kind, counted storage by storage while operators are dispatched.

Works on fake tensors and on real ones alike, so a dry run can be held against a run. Every allocation and every
release is one entry of a log; the kind of a storage may become known later (a tensor of the backward turns out to
be a gradient), and the log is added up once, at the end. So the cost is that of a dictionary look-up an operator,
and grows linearly: torch's own ``MemTracker`` does not.

Not seen: what an operator allocates inside itself and releases before it returns, what the backend of a process
group holds, and what an allocator keeps beside what was asked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable
from enum import IntEnum
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

_DEVICE = torch.ops.prim.device.default
_STORAGE: Any = torch.UntypedStorage
_CAST = torch.ops.aten._to_copy.default


class Kind(IntEnum):
    """What bytes are for."""

    WEIGHTS = 0
    GRADIENTS = 1
    OPTIMIZER = 2
    ACTIVATIONS = 3
    WORKING_WEIGHTS = 4
    TEMPORARIES = 5
    OTHER = 6

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


KIND_SAYS = {
    Kind.WEIGHTS: "parameters, this rank's part",
    Kind.GRADIENTS: "of those parameters",
    Kind.OPTIMIZER: "its state",
    Kind.ACTIVATIONS: "what a forward allocates, and keeps for its backward",
    Kind.WORKING_WEIGHTS: "weights gathered or cast for use",
    Kind.TEMPORARIES: "of backward and update, messages among them",
    Kind.OTHER: "batch, buffers, tables",
}

Moment = Hashable
Held = dict[Kind, int]


class MemoryLog(TorchDispatchMode):
    """Watches storages while it is entered.

    Attributes:
        forwarding: allocations belong to a forward, unless a backward pass is running.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forwarding = False
        self._kinds: list[Kind] = []
        self._live: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._sizes: list[int] = []
        self._log: list[tuple[int, int]] = []
        self._moments: list[tuple[int, Moment]] = [(0, "start")]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            return func(*args)
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes back as operators on the local tensors
        if func.namespace == "fsdp" and "all_gather" in func.name():
            self.is_kind(
                (a for a in args if isinstance(a, Tensor)), Kind.WORKING_WEIGHTS
            )  # the buffer it goes into
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self._see(out, func, args)
        elif isinstance(out, (list, tuple)):
            for one in out:
                if isinstance(one, Tensor):
                    self._see(one, func, args)
        return out

    def at(self, moment: Moment) -> None:
        """From here on, what is held is held at this moment; a moment may come again."""
        self._moments.append((len(self._log), moment))

    def is_kind(self, tensors: Iterable[Tensor | None], kind: Kind) -> None:
        """The storages of these tensors are of this kind, and have been since they were allocated."""
        for tensor in tensors:
            if tensor is None:
                continue
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            self._kinds[self._number(local.untyped_storage(), kind)] = kind

    def left_over(self) -> None:
        """What a step's forward and backward allocated and is still here belongs to none of them: tables."""
        for number, _ in self._live.values():
            if self._kinds[number] in (Kind.ACTIVATIONS, Kind.TEMPORARIES):
                self._kinds[number] = Kind.OTHER

    def peaks(self) -> dict[Moment, Held]:
        """For each moment what was held when it held most; each a sum over ``Kind``."""
        now, total = [0] * len(Kind), 0
        most: dict[Moment, tuple[int, list[int]]] = {}
        bounds = [start for start, _ in self._moments[1:]] + [len(self._log)]
        for (start, moment), end in zip(self._moments, bounds, strict=True):
            best, held = most.get(moment, (-1, now))
            if total > best:
                best, held = total, list(now)
            for number, nbytes in self._log[start:end]:
                now[self._kinds[number]] += nbytes
                total += nbytes
                if total > best:
                    best, held = total, list(now)
            most[moment] = best, held
        return {m: dict(zip(Kind, held, strict=True)) for m, (_, held) in most.items()}

    def _see(self, tensor: Tensor, func: Any, args: Any) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._live:
            return
        self._number(storage, self._kind_of_new(func, args))

    def _kind_of_new(self, func: Any, args: Any) -> Kind:
        if func is _CAST:
            known = self._live.get(args[0].untyped_storage()._cdata)
            if known is not None and self._kinds[known[0]] in (Kind.WEIGHTS, Kind.WORKING_WEIGHTS):
                return Kind.WORKING_WEIGHTS
        if torch._C._current_graph_task_id() != -1:
            return Kind.TEMPORARIES
        return Kind.ACTIVATIONS if self.forwarding else Kind.TEMPORARIES

    def _number(self, storage: torch.UntypedStorage, kind: Kind) -> int:
        key = storage._cdata
        known = self._live.get(key)
        if known is not None:
            return known[0]
        number = len(self._kinds)
        self._kinds.append(kind)
        self._sizes.append(storage.nbytes())
        self._live[key] = number, weakref.ref(storage, partial(self._gone, key))
        self._log.append((number, self._sizes[number]))
        return number

    def _gone(self, key: int, _: object) -> None:
        number, _ref = self._live.pop(key)
        if self._sizes[number]:
            self._log.append((number, -self._sizes[number]))

    def _resized(self, storage: torch.UntypedStorage) -> None:
        """Only FSDP2 gives storages away and takes them back: gathered weights."""
        number = self._number(storage, Kind.WORKING_WEIGHTS)
        self._kinds[number] = Kind.WORKING_WEIGHTS
        now = storage.nbytes()
        if now != self._sizes[number]:
            self._log.append((number, now - self._sizes[number]))
            self._sizes[number] = now

    def __enter__(self) -> MemoryLog:
        self._plain_resize = resize = _STORAGE.resize_

        def watched(storage: torch.UntypedStorage, size: int) -> Any:
            self._number(storage, Kind.WORKING_WEIGHTS)  # before, so that the log has the old size
            done = resize(storage, size)
            self._resized(storage)
            return done

        _STORAGE.resize_ = watched
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _STORAGE.resize_ = self._plain_resize
        super().__exit__(kind, error, trace)

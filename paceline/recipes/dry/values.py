"""The few numbers that decide what a step does, where tensors have no values.

A dry run's tensors are shapes. But how many tokens go to which expert decides how much is sent, and a loss that is
not finite ends the step. So small integer tensors keep values beside them, as long as they follow from values that
are known; and where tokens are counted by expert, which follows from nothing known, they are dealt out evenly:
*balanced routing*, said in the answer. Any other number that is asked for is 1, which is finite and true.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from paceline.deliver.wire.fake import DECISION_NUMBERS

_aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_FILLED = {  # shape from their argument, value from their name
    _aten.new_zeros.default: 0,
    _aten.zeros_like.default: 0,
    _aten.new_empty.default: 0,
    _aten.empty_like.default: 0,
    _aten.ones_like.default: 1,
}


class Values(TorchDispatchMode):
    """Follows small integer tensors while it is entered. ``dealt`` counts how often tokens were dealt out evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.dealt = 0
        self._known = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE:
            return func(*args)
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func is _aten._local_scalar_dense.default:
            return self._item(args[0])
        if func is _aten.bincount.default:
            return self._bincount(*args, **kwargs)
        out = func(*args, **kwargs)
        first = out[0] if isinstance(out, (tuple, list)) and out else out
        if isinstance(first, Tensor) and not first.is_floating_point():
            self._follow(func, args, kwargs, out)
        return out

    def _item(self, tensor: Tensor) -> Any:
        value = self._known.get(tensor)
        if value is not None:
            with _disable_current_modes():
                return value.item()
        return 1.0 if tensor.is_floating_point() else tensor.dtype == torch.bool or 1

    def _bincount(self, index: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
        """Its length is data too, unless ``minlength`` says how many there are."""
        counts = _aten.new_zeros.default(index, [minlength], dtype=torch.int64)
        with _disable_current_modes():
            self._known[counts] = torch.zeros(minlength, dtype=torch.int64)
        self._deal(counts, index.numel())
        return counts

    def _follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if func is _aten.scatter_add_.default and args[0] in self._known:
            if all(isinstance(a, Tensor) and a in self._known for a in (args[2], args[3])):
                self._compute(func, args, kwargs, out)
            else:
                self._deal(args[0], args[2].numel())
            return
        outs = [out] if isinstance(out, Tensor) else out
        if sum(one.numel() for one in outs) > DECISION_NUMBERS:
            return
        if func in _FILLED:
            with _disable_current_modes():
                self._known[out] = torch.full(out.shape, _FILLED[func], dtype=out.dtype)
            return
        leaves = _flat((args, kwargs))
        given = [a for a in leaves if isinstance(a, Tensor)]
        stored = any(isinstance(a, torch.UntypedStorage) for a in leaves)  # fake memory, set by hand
        if not stored and all(a in self._known for a in given):
            self._compute(func, args, kwargs, out)
        elif func._schema.is_mutable:
            for one in outs:
                self._forget(one)

    def _forget(self, written: Tensor) -> None:
        """What is written through one view is unknown in all: a gathered choice of experts is not its empty buffer."""
        storage = written.untyped_storage()._cdata
        for tensor in [one for one in self._known if one.untyped_storage()._cdata == storage]:
            del self._known[tensor]

    def _compute(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """The same operator on the values; views stay views, so what is written through one is seen in all."""
        with _disable_current_modes():
            real = func(*_swap(args, self._known), **_swap(_on_host(kwargs), self._known))
        pairs = [(out, real)] if isinstance(out, Tensor) else zip(out, real, strict=True)
        for one, value in pairs:
            self._known[one] = value

    def _deal(self, counts: Tensor, tokens: int) -> None:
        value = self._known[counts]
        with _disable_current_modes():
            share, rest = divmod(tokens, value.numel())
            value += share + (torch.arange(value.numel()) < rest)
        self.dealt += 1


def _on_host(kwargs: Any) -> Any:
    return {**kwargs, "device": "cpu"} if "device" in kwargs else kwargs


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for one in value for leaf in _flat(one)]
    return _flat(list(value.values())) if isinstance(value, dict) else [value]


def _swap(value: Any, known: WeakTensorKeyDictionary) -> Any:
    if isinstance(value, Tensor):
        return known[value]
    if isinstance(value, (list, tuple)):
        return type(value)(_swap(one, known) for one in value)
    return {key: _swap(one, known) for key, one in value.items()} if isinstance(value, dict) else value

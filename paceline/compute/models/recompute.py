"""Which activations of a block are kept for its backward, and which are computed again (Chen et al. 2016,
arXiv:1604.06174): everything, the dear ones, or the block's input only.

The checkpoint is inside the block's forward, so that names do not change and whoever wraps the block (FSDP2's
gathering) stays outside it. Nothing here draws random numbers, so no generator state is saved.

Why not torch's selective contexts in eager mode: they hand a kept output out once, so a backward in two halves, as
zero-bubble pipelines run it, is refused. Ours keep it until the graph is freed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

RECOMPUTE = ("none", "selective", "full")

_aten = torch.ops.aten
_KEPT = {
    # Products of a weight. Not bmm: attention without a kernel of its own has its T×T scores there.
    _aten.mm.default,
    _aten.addmm.default,
    _aten._grouped_mm.default,
    # attention itself, by device and kernel
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
}


def recomputed(kind: str, forward: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """``forward(*inputs)``, whose activations are kept as ``kind`` says.

    Args:
        kind: ``none``: all are kept. ``selective``: outputs of matrix products and of attention are kept, what
            lies between is computed again. ``full``: only the inputs are kept.
    """
    if kind == "none" or not torch.is_grad_enabled():
        return forward(*inputs)
    given: dict[str, Any] = {}
    if kind == "selective":
        given["context_fn"] = _torchs_contexts if torch.compiler.is_compiling() else _contexts
    return checkpoint(
        forward, *inputs, use_reentrant=False, preserve_rng_state=False, determinism_check="none", **given
    )


class _Keep(TorchDispatchMode):
    """Notes the outputs of the dear operators of a forward, in order."""

    def __init__(self, kept: list[tuple[Any, Any]]) -> None:
        super().__init__()
        self._kept = kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in _KEPT:
            # detached: the tensor itself comes to hold the graph that this list hangs on
            self._kept.append((func, tree_map_only(Tensor, Tensor.detach, out)))
        return out


class _HandOut(TorchDispatchMode):
    """Gives them back in the same order, from the beginning each time that the block is computed again."""

    def __init__(self, kept: list[tuple[Any, Any]]) -> None:
        super().__init__()
        self._kept, self._next = kept, 0

    def __enter__(self) -> Any:
        self._next = 0
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _KEPT:
            return func(*args, **(kwargs or {}))
        kept_func, out = self._kept[self._next]
        if kept_func is not func:
            raise RuntimeError(f"a block computed again calls {func} where it had called {kept_func}")
        self._next += 1
        return tree_map_only(Tensor, Tensor.detach, out)


def _contexts() -> tuple[_Keep, _HandOut]:
    kept: list[tuple[Any, Any]] = []
    return _Keep(kept), _HandOut(kept)


def _torchs_contexts() -> Any:
    """What the compiler reads its policy from."""
    return create_selective_checkpoint_contexts(_policy)


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE

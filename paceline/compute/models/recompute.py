"""Which activations of a block are kept for its backward, and which are computed again (Chen et al. 2016,
arXiv:1604.06174): everything, the dear ones, or the block's input only.

The checkpoint is inside the block's forward, so that names do not change and whoever wraps the block (FSDP2's
gathering) stays outside it. Nothing here draws random numbers, so no generator state is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
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
        given["context_fn"] = partial(create_selective_checkpoint_contexts, _keep)
    return checkpoint(
        forward, *inputs, use_reentrant=False, preserve_rng_state=False, determinism_check="none", **given
    )


def _keep(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE

"""The loss: a sum over valid target tokens, so that it is token-exact however the batch is cut.

Each micro-batch, rank and stage contributes its own sum; one division by the global count of valid tokens makes
the mean. A rank without a valid token adds zero.

The output projection is part of it. All logits of a micro-batch are never held at once: a chunk of tokens at a
time is projected, scored and, where a gradient is wanted, differentiated on the spot, since the gradient of a sum
is known up to one scalar factor before the backward begins (as in Liger Kernel, Hsu et al. 2024, arXiv:2410.10989).

Legend: B batch, T tokens, N tokens flattened or of a chunk, D hidden, R rows of the vocabulary that are here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from paceline.compute.seams import Vocabulary, WholeVocabulary

IGNORED = -100  # target id of a position that does not count
CHUNK_NUMBERS = 1 << 23  # of logits at once, over the whole vocabulary: 32 MiB in float32, 64 in float64


def soft_cap(scores: Tensor, cap: float) -> Tensor:
    """``cap · tanh(scores / cap)``, an fp32 island."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    return (torch.tanh(scores.to(wide) / cap) * cap).to(scores.dtype)


def linear_cross_entropy(
    hidden_BTD: Tensor,
    weight_RD: Tensor,
    targets_BT: Tensor,
    *,
    vocab_size: int,
    cap: float | None = None,
    vocabulary: Vocabulary | None = None,
) -> Tensor:
    """Cross-entropy of ``hidden · weightᵀ`` summed over valid targets, nats, scalar, float32 (float64 for float64).

    Args:
        hidden_BTD: input of the head, in the compute dtype; the products are taken in it, the rest is an fp32 island.
        weight_RD: rows of the head that are here, cast to the compute dtype.
        targets_BT: token ids over the whole vocabulary; ``IGNORED`` counts for nothing.
        vocab_size: of the whole vocabulary, which alone decides how many tokens are one chunk.
        cap: soft cap of the logits.
        vocabulary: who else holds rows; None = all are here.
    """
    return _LinearCrossEntropy.apply(
        hidden_BTD.flatten(0, 1),
        weight_RD.to(hidden_BTD.dtype),
        targets_BT.flatten(),
        vocab_size,
        cap,
        vocabulary or WholeVocabulary(),
        torch.is_grad_enabled(),
    )


class _LinearCrossEntropy(torch.autograd.Function):
    """Keeps its gradients, not the logits. They are read only, so the backward may run in two halves or twice."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_RD: Tensor,
        targets_N: Tensor,
        vocab_size: int,
        cap: float | None,
        vocabulary: Vocabulary,
        differentiate: bool,
    ) -> Tensor:
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        of_hidden, of_weight = (differentiate and needed for needed in ctx.needs_input_grad[:2])
        d_hidden_ND = torch.empty_like(hidden_ND) if of_hidden else None
        d_weight_RD: Tensor | None = None
        total = torch.zeros((), dtype=wide, device=hidden_ND.device)
        for rows in chunks(len(targets_N), vocab_size):
            x_ND = hidden_ND[rows]
            logits_NR = F.linear(x_ND, weight_RD).to(wide)
            losses_N, d_logits_NR = score(
                logits_NR, targets_N[rows], vocab_size, cap, vocabulary, of_hidden or of_weight
            )
            total += losses_N.sum()
            if d_logits_NR is None:
                continue
            d_logits_NR = d_logits_NR.to(x_ND.dtype)
            if d_hidden_ND is not None:
                torch.mm(d_logits_NR, weight_RD, out=d_hidden_ND[rows])
            if of_weight:
                d_weight_RD = _add_product(d_weight_RD, d_logits_NR.t(), x_ND, wide)
        ctx.save_for_backward(d_hidden_ND, d_weight_RD)
        ctx.weight = weight_RD.dtype, weight_RD.shape
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden_ND, d_weight_RD = ctx.saved_tensors
        if d_hidden_ND is not None:
            d_hidden_ND = d_hidden_ND * d_total
        if d_weight_RD is not None:
            d_weight_RD = (d_weight_RD * d_total).to(ctx.weight[0])
        return d_hidden_ND, d_weight_RD, None, None, None, None, None


def chunks(tokens: int, vocab_size: int) -> Iterator[slice]:
    """Tokens that are scored together: of a size that depends on the whole vocabulary and on no layout."""
    size = max(1, CHUNK_NUMBERS // vocab_size)
    for start in range(0, tokens, size):
        yield slice(start, min(start + size, tokens))


def score(
    logits_NR: Tensor,
    targets_N: Tensor,
    vocab_size: int,
    cap: float | None,
    vocabulary: Vocabulary,
    differentiate: bool,
) -> tuple[Tensor, Tensor | None]:
    """Loss of each token, and where wanted the gradient of their sum by the logits, in the memory of the logits."""
    slope_NR: Tensor | None = None
    if cap is not None:
        logits_NR = logits_NR.div_(cap).tanh_()
        slope_NR = 1 - logits_NR.square() if differentiate else None
        logits_NR.mul_(cap)
    here, index = _held(targets_N, vocabulary.rows(vocab_size))
    top_N = vocabulary.max_(logits_NR.amax(-1))
    logits_NR.sub_(top_N[:, None])
    target_N = logits_NR.gather(1, index)[:, 0] * here
    weights_NR = logits_NR.exp_()
    total_N, target_N = vocabulary.sum_(torch.stack((weights_NR.sum(-1), target_N))).unbind()
    valid = targets_N != IGNORED
    losses_N = (total_N.log() - target_N).masked_fill(~valid, 0.0)
    if not differentiate:
        return losses_N, None
    d_logits_NR = weights_NR.mul_((valid / total_N)[:, None])
    d_logits_NR.scatter_add_(1, index, -here[:, None].to(d_logits_NR.dtype))
    return losses_N, d_logits_NR if slope_NR is None else d_logits_NR.mul_(slope_NR)


def _held(targets_N: Tensor, rows: range) -> tuple[Tensor, Tensor]:
    """Whether a target's row is here, and its local number [N, 1], any where it is not."""
    local_N = targets_N - rows.start
    here = (local_N >= 0) & (local_N < len(rows))
    return here, (local_N * here)[:, None]


def _add_product(total: Tensor | None, a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    """``total + a b``, accumulated in ``wide``."""
    if total is None:
        return (a @ b).to(wide)
    return total.addmm_(a, b) if a.dtype == wide else total.add_(a @ b)

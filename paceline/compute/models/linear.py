"""Linear layers and embeddings whose weights are cast at the module's edge.

The mathematics of a low precision is defined here and nowhere else (DESIGN §4): a weight is kept in the
master dtype (float32, or float64 for proofs) and cast to the dtype of the activation where it is used. A
sharded weight that arrives already cast (FSDP2's ``param_dtype``) meets the same cast as a no-op, so the
forward of one sequence is bit-equal on one device and on any data layout. Autocast is a different program.

Legend: B batch, T sequence, I in features, O out features, V vocabulary, D hidden.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """``y = x Wᵀ (+ b)`` with W [O, I] in the master dtype; allocates without initialising (see ``init.py``)."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x_BTI: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x_BTI.dtype)
        return F.linear(x_BTI, self.weight.to(x_BTI.dtype), bias)

    def product(self, x_BTI: Tensor) -> Tensor:
        """``x Wᵀ`` alone: a partial sum where the in features are cut, so that the bias must wait for the whole."""
        return F.linear(x_BTI, self.weight.to(x_BTI.dtype))

    def add_bias(self, y_BTO: Tensor) -> Tensor:
        """``y + b``, once the partial sums are complete."""
        return y_BTO if self.bias is None else y_BTO + self.bias.to(y_BTO.dtype)


class Embedding(nn.Module):
    """W [V, D]. Its rows, not the table, are cast where they are used: the same bits for a fraction of the work."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))

    def forward(self, tokens_BT: Tensor, dtype: torch.dtype) -> Tensor:
        return F.embedding(tokens_BT, self.weight).to(dtype)

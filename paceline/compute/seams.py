"""The few places where distribution may plug into one device's forward, as Protocols.

``compute`` calls these by value and knows nothing of ranks. The plain versions are here; context parallelism
will bring another attention, expert parallelism another dispatch, vocabulary parallelism another loss.
"""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor


class Attention(Protocol):
    """Softmax attention of q [B, H, T, K] over k, v [B, G, T, K], G dividing H; returns [B, H, T, K].

    ``mask`` is None for plain causal attention, else a boolean [B, 1, T, T], True where a query may look.
    """

    def __call__(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, mask: Tensor | None) -> Tensor: ...


class TokenLoss(Protocol):
    """Sum of the loss over valid targets: logits [B, T, V], targets [B, T] (-100 = not valid) → scalar."""

    def __call__(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor: ...


def plain_attention(q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, mask: Tensor | None) -> Tensor:
    """Attention on one device through torch's scaled_dot_product_attention, scale 1/sqrt(head_dim)."""
    grouped = q_BHTK.shape[1] != k_BGTK.shape[1]
    if mask is None:
        return F.scaled_dot_product_attention(q_BHTK, k_BGTK, v_BGTK, is_causal=True, enable_gqa=grouped)
    return F.scaled_dot_product_attention(q_BHTK, k_BGTK, v_BGTK, attn_mask=mask, enable_gqa=grouped)

"""Grouped-query causal attention with rotary positions.

Legend: B batch, T sequence, D hidden, H query heads, G key/value heads, K head dim.
"""

from __future__ import annotations

from torch import Tensor, nn

from paceline.compute.models.linear import Linear
from paceline.compute.models.rope import rotate
from paceline.compute.seams import Attention, Look, plain_attention
from paceline.job.presets import ModelWidths


class GroupedQueryAttention(nn.Module):
    """q, k, v projections → rotary → attention (a seam) → output projection."""

    def __init__(self, widths: ModelWidths, attend: Attention = plain_attention) -> None:
        super().__init__()
        self.head_dim = widths.head_dim
        q_size = widths.num_attention_heads * widths.head_dim
        kv_size = widths.num_key_value_heads * widths.head_dim
        bias = widths.attention_bias
        self.q_proj = Linear(widths.hidden_size, q_size, bias=bias)
        self.k_proj = Linear(widths.hidden_size, kv_size, bias=bias)
        self.v_proj = Linear(widths.hidden_size, kv_size, bias=bias)
        self.o_proj = Linear(q_size, widths.hidden_size)
        self.attend = attend

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor, look: Look) -> Tensor:
        heads = (*x_BTD.shape[:2], -1, self.head_dim)
        q_BTHK = rotate(self.q_proj(x_BTD).view(heads), cos, sin)
        k_BTGK = rotate(self.k_proj(x_BTD).view(heads), cos, sin)
        v_BTGK = self.v_proj(x_BTD).view(heads)
        out_BHTK = self.attend(q_BTHK.transpose(1, 2), k_BTGK.transpose(1, 2), v_BTGK.transpose(1, 2), look)
        return self.o_proj(out_BHTK.transpose(1, 2).flatten(2))

"""Grouped-query causal attention.

Legend: B batch, T tokens, P of them in this part of the residual stream, D hidden, H query heads, G key/value
heads (both: those that are here), K head dim.
"""

from __future__ import annotations

from torch import Tensor, nn

from paceline.compute.models.linear import Linear
from paceline.compute.models.norm import RMSNorm
from paceline.compute.models.rope import Rotation, rotate
from paceline.compute.seams import Look, Seams
from paceline.job.presets import ModelWidths


class GroupedQueryAttention(nn.Module):
    """q, k, v projections → norm of each head's query and key → rotary → attention (a seam) → output projection.

    Head counts come from the weights' shapes, so that a cut weight needs no other word.
    """

    def __init__(self, widths: ModelWidths, seams: Seams) -> None:
        super().__init__()
        hidden, self.head_dim = widths.hidden_size, widths.head_dim
        q_size = widths.num_attention_heads * widths.head_dim
        kv_size = widths.num_key_value_heads * widths.head_dim
        bias = widths.attention_bias
        self.q_proj = Linear(hidden, q_size, bias=bias)
        self.k_proj = Linear(hidden, kv_size, bias=bias)
        self.v_proj = Linear(hidden, kv_size, bias=bias)
        self.o_proj = Linear(q_size, hidden, bias=widths.attention_output_bias)
        self.q_norm = RMSNorm(widths.head_dim, widths.rms_norm_eps) if widths.qk_norm else None
        self.k_norm = RMSNorm(widths.head_dim, widths.rms_norm_eps) if widths.qk_norm else None
        self.seams = seams

    def forward(self, x_BPD: Tensor, rotation: Rotation | None, look: Look) -> Tensor:
        stream = self.seams.stream
        x_BTD = stream.gather(x_BPD)
        heads = (*x_BTD.shape[:2], -1, self.head_dim)
        q_BTHK = self.q_proj(x_BTD).view(heads)
        k_BTGK = self.k_proj(x_BTD).view(heads)
        v_BTGK = self.v_proj(x_BTD).view(heads)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTHK, k_BTGK = self.q_norm(q_BTHK), self.k_norm(k_BTGK)
        if rotation is not None:
            q_BTHK, k_BTGK = rotate(q_BTHK, *rotation), rotate(k_BTGK, *rotation)
        out_BHTK = self.seams.attend(
            q_BTHK.transpose(1, 2), k_BTGK.transpose(1, 2), v_BTGK.transpose(1, 2), look
        )
        y_BPD = stream.spread(self.o_proj.product(out_BHTK.transpose(1, 2).flatten(2)))
        return self.o_proj.add_bias(y_BPD)

"""Latent attention written out plainly in float64, in its other form: keys are never made.

A query is carried through its head's rows of ``kv_b_proj`` and meets the latents themselves, and the mean of the
latents is carried out through the values' rows: equal by associativity alone, which no shared mistake in the
splitting of heads survives.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.job.presets import ModelWidths


def latent_attention(
    w: dict[str, Tensor], c: ModelWidths, x: Tensor, allowed: Tensor, angle: Tensor
) -> Tensor:
    """Attention of one document.

    Args:
        w: weights by their name in the layer. x: [T, D]. allowed: [T, T] boolean. angle: [T, R / 2].
    """
    own = {name.removeprefix("self_attn."): v for name, v in w.items() if name.startswith("self_attn.")}
    n, r, v = c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim
    heads, rank = c.num_attention_heads, c.kv_lora_rank
    if c.q_lora_rank is None:
        queries = x @ own["q_proj.weight"].T
    else:
        small = rms(x @ own["q_a_proj.weight"].T, own["q_a_layernorm.weight"], c)
        queries = small @ own["q_b_proj.weight"].T
    down = own["kv_a_proj_with_mqa.weight"]
    latent = rms(x @ down[:rank].T, own["kv_a_layernorm.weight"], c)
    shared = turned(x @ down[rank:].T, angle)
    up = own["kv_b_proj.weight"].reshape(heads, n + v, -1)
    out = torch.zeros_like(x)
    for head in range(heads):
        query = queries[:, head * (n + r) : (head + 1) * (n + r)]
        score = (query[:, :n] @ up[head, :n]) @ latent.T + turned(query[:, n:], angle) @ shared.T
        weight = torch.exp(score / math.sqrt(n + r)) * allowed
        mean = weight / weight.sum(-1, keepdim=True) @ latent
        out = out + mean @ up[head, n:].T @ own["o_proj.weight"][:, head * v : (head + 1) * v].T
    return out


def rms(x: Tensor, weight: Tensor, c: ModelWidths) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + c.rms_norm_eps) * weight


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """Pairs (i, i + R/2) as complex numbers."""
    one, other = x.chunk(2, -1)
    turned = torch.complex(one, other) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), -1)

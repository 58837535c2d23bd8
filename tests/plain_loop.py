"""The root of trust: a plain torch training loop that imports nothing of Paceline (DESIGN §4).

Attention, normalisation and rotation are spelled out with elementary operations, the optimizer is torch's own
unfused AdamW, the loss is one mean over the valid tokens of the whole batch. Everything in float64.
"""

import math

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """x [B, T, heads, K]: pairs (i, i + K/2) turn by position · theta^(-2i/K)."""
    half = x.shape[-1] // 2
    angle = positions[..., None].double() * theta ** (-torch.arange(half).double() / half)
    cos, sin = torch.cos(angle)[:, :, None], torch.sin(angle)[:, :, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """q [B, T, H, K], k and v [B, T, G, K], allowed [B, T, T] → [B, T, H·K]."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    score = torch.einsum("bihk,bjhk->bhij", q, k) / math.sqrt(q.shape[-1])
    score = score.masked_fill(~allowed[:, None], float("-inf"))
    return torch.einsum("bhij,bjhk->bihk", torch.softmax(score, -1), v).flatten(2)


def logits(w: dict[str, Tensor], c: dict, tokens: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
    batch, length = tokens.shape
    causal = torch.arange(length)[:, None] >= torch.arange(length)[None, :]
    allowed = causal & (segments[:, :, None] == segments[:, None, :])
    x = w["embed_tokens.weight"][tokens]
    for i in range(c["layers"]):
        p = f"layers.{i}."
        h = rms_norm(x, w[p + "input_layernorm.weight"], c["eps"])
        q, k, v = (
            (h @ w[f"{p}self_attn.{n}_proj.weight"].T + w.get(f"{p}self_attn.{n}_proj.bias", 0.0)).view(
                batch, length, -1, c["head_dim"]
            )
            for n in "qkv"
        )
        q, k = rotate(q, positions, c["theta"]), rotate(k, positions, c["theta"])
        x = x + attention(q, k, v, allowed) @ w[p + "self_attn.o_proj.weight"].T
        h = rms_norm(x, w[p + "post_attention_layernorm.weight"], c["eps"])
        gate = h @ w[p + "mlp.gate_proj.weight"].T
        up = h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    x = rms_norm(x, w["norm.weight"], c["eps"])
    return x @ w["embed_tokens.weight" if c["tied"] else "lm_head.weight"].T


def train(weights: dict[str, Tensor], c: dict, batches: list[dict[str, Tensor]], rates: list[float]) -> dict:
    """One step a batch. ``c``: layers head_dim eps theta tied betas adam_eps weight_decay max_norm.

    Returns losses, gradient norms before clipping, the first step's gradients, and the final weights.
    """
    w = {name: value.detach().clone().double().requires_grad_() for name, value in weights.items()}
    groups = [
        {"params": [p for p in w.values() if p.ndim >= 2], "weight_decay": c["weight_decay"]},
        {"params": [p for p in w.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=c["betas"], eps=c["adam_eps"], foreach=False)
    losses, norms, first = [], [], {}
    for batch, rate in zip(batches, rates, strict=True):
        tokens, targets = batch["tokens"], batch["targets"]
        positions = batch.get("positions", torch.arange(tokens.shape[1]).expand_as(tokens))
        segments = batch.get("segments", torch.zeros_like(tokens))
        log_p = torch.log_softmax(logits(w, c, tokens, positions, segments), -1)
        valid = targets >= 0
        loss = -log_p[valid].gather(-1, targets[valid][:, None]).sum() / valid.sum()
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float((p.grad * p.grad).sum()) for p in w.values()))
        first = first or {name: p.grad.clone() for name, p in w.items()}
        if norm > c["max_norm"]:
            for p in w.values():
                p.grad *= c["max_norm"] / norm
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(float(loss.detach()))
        norms.append(norm)
    return {
        "losses": losses,
        "norms": norms,
        "first": first,
        "weights": {n: p.detach() for n, p in w.items()},
    }

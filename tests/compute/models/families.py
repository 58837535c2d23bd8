"""The families of decoder that tests walk through, and each one written out plainly in float64.

The reference shares no function with the model: elementary operations, one sequence at a time, loops over heads'
groups avoided only where a repeat says the same.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from paceline.compute.init import fill_rule, fill_slice
from paceline.compute.models.decoder import Decoder
from paceline.job.presets import ModelWidths
from tests.compute.models.plain_latent import latent_attention
from tests.tiny import tiny_widths

GPT2: dict[str, Any] = {
    "norm": "layernorm",
    "gated_mlp": False,
    "mlp_bias": True,
    "attention_bias": True,
    "attention_output_bias": True,
    "hidden_act": "gelu_new",
    "position_embedding_type": "absolute",
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40,
}
MIXED = ("sliding_attention", "full_attention", "sliding_attention", "full_attention")
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 12,
    "q_lora_rank": 20,
    "kv_lora_rank": 14,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
}
DENSE: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"attention_bias": True, "tie_word_embeddings": True},
    "gpt2": GPT2,
    "qwen3": {"qk_norm": True, "head_dim": 16},
    "mistral": {"sliding_window": 5},
    "gemma2": {
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": 4,
        "layer_types": MIXED,
        "final_logit_softcapping": 0.7,
        "attn_logit_softcapping": 0.3,
        "tie_word_embeddings": True,
    },
    "gelu": {"hidden_act": "gelu", "mlp_bias": True, "attention_output_bias": True},
    "relu": {"hidden_act": "relu", "gated_mlp": False},
    "latent": LATENT,
    "latent, whole query": {**LATENT, "q_lora_rank": None, "v_head_dim": 16},
}
SPARSE: dict[str, dict[str, Any]] = {
    "mixtral": {**EXPERTS, "first_k_dense_replace": 0},
    "deepseek": {**EXPERTS, "n_shared_experts": 2, "scoring_func": "sigmoid"},
    "deepseek-v3": {**EXPERTS, **LATENT, "n_shared_experts": 1, "scoring_func": "sigmoid"},
}


def widths_of(family: str) -> ModelWidths:
    """TINY with the changes of a family."""
    return tiny_widths(**{**DENSE, **SPARSE}[family])


def filled(widths: ModelWidths, *, scale: float = 8.0, **given: Any) -> Decoder:
    """A float64 decoder with initial values, made larger so that every part of it matters; norms and biases too."""
    model = Decoder(widths, dtype=torch.float64, **given).double()
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        start = [0] * value.dim()
        rule = fill_rule(name, widths)
        fill_slice(value, rule, seed=3, name=name, shape=value.shape, offsets=start)
        noise = torch.empty_like(value)
        fill_slice(noise, fill_rule("x.weight", widths), seed=4, name=name, shape=value.shape, offsets=start)
        value.mul_(scale).add_(noise * 5) if rule.std else value.add_(noise * 5)
    if model.balance is not None:
        model.balance.reset()
    return model


def batch_of(rows: int = 3, length: int = 16, *, documents: bool) -> dict[str, Tensor]:
    """Tokens, targets (some of them ignored) and, with ``documents``, three documents in each row."""
    gen = torch.Generator().manual_seed(11)
    tokens = torch.randint(0, 101, (rows, length), generator=gen)
    targets = torch.randint(0, 101, (rows, length), generator=gen)
    targets[torch.rand(rows, length, generator=gen) < 0.2] = -100
    batch = {"tokens": tokens, "targets": targets}
    if documents:
        borders = torch.stack(
            [torch.randperm(length - 1, generator=gen)[:2].sort().values + 1 for _ in tokens]
        )
        place = torch.arange(length).expand(rows, -1)
        segments = (place[..., None] >= borders[:, None]).sum(-1)
        starts = torch.cat((torch.zeros(rows, 1, dtype=torch.int64), borders), 1)
        batch |= {"segments": segments, "positions": place - starts.gather(1, segments)}
    return batch


def reference_logits(w: dict[str, Tensor], c: ModelWidths, tokens: Tensor, positions: Tensor) -> Tensor:
    """Logits [T, V] of one document, float64."""
    x = w["embed_tokens.weight"][tokens]
    if c.position_embedding_type == "absolute":
        x = x + w["embed_positions.weight"][positions]
    for layer in range(c.num_hidden_layers):
        own = {
            n.removeprefix(f"layers.{layer}."): v for n, v in w.items() if n.startswith(f"layers.{layer}.")
        }
        x = x + _attention(own, c, layer, _norm(own, "input_layernorm", c, x), positions)
        x = x + _mlp(own, c, _norm(own, "post_attention_layernorm", c, x))
    head = w["embed_tokens.weight" if c.tie_word_embeddings else "lm_head.weight"]
    logits = _norm(w, "norm", c, x) @ head.T
    cap = c.final_logit_softcapping
    return logits if cap is None else cap * torch.tanh(logits / cap)


def reference_loss(w: dict[str, Tensor], c: ModelWidths, batch: dict[str, Tensor]) -> Tensor:
    """Sum over valid targets, each document computed alone."""
    total = torch.zeros((), dtype=torch.float64)
    segments = batch.get("segments", torch.zeros_like(batch["tokens"]))
    for tokens, targets, segment in zip(batch["tokens"], batch["targets"], segments, strict=True):
        for document in segment.unique():
            here = segment == document
            logits = reference_logits(w, c, tokens[here], torch.arange(int(here.sum())))
            for row, target in zip(logits, targets[here], strict=True):
                if target >= 0:
                    total = total + torch.log(torch.exp(row - row[target]).sum())
    return total


def _norm(w: dict[str, Tensor], name: str, c: ModelWidths, x: Tensor) -> Tensor:
    if c.norm == "layernorm":
        x = x - x.mean(-1, keepdim=True)
    scaled = x / torch.sqrt((x * x).mean(-1, keepdim=True) + c.rms_norm_eps) * w[f"{name}.weight"]
    return scaled + w[f"{name}.bias"] if c.norm == "layernorm" else scaled


def _linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.zeros(()))


def _mlp(w: dict[str, Tensor], c: ModelWidths, x: Tensor) -> Tensor:
    up = _linear(w, "mlp.up_proj", x)
    inner = _act(c, _linear(w, "mlp.gate_proj", x)) * up if c.gated_mlp else _act(c, up)
    return _linear(w, "mlp.down_proj", inner)


def _act(c: ModelWidths, x: Tensor) -> Tensor:
    if c.hidden_act == "silu":
        return x / (1 + torch.exp(-x))
    if c.hidden_act == "relu":
        return x * (x > 0)
    if c.hidden_act == "gelu":
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _attention(w: dict[str, Tensor], c: ModelWidths, layer: int, x: Tensor, positions: Tensor) -> Tensor:
    length, out = len(x), []
    back = positions[:, None] - positions[None, :]
    allowed = back >= 0
    if c.sliding_window is not None and (c.layer_types is None or "sliding" in c.layer_types[layer]):
        allowed = allowed & (back < c.sliding_window)
    if c.kv_lora_rank is not None:
        return latent_attention(w, c, x, allowed, _angles(c, c.qk_rope_head_dim, positions))
    q, k, v = (_linear(w, f"self_attn.{n}_proj", x).view(length, -1, c.head_dim) for n in "qkv")
    for head in range(c.num_attention_heads):
        group = head // (c.num_attention_heads // c.num_key_value_heads)
        one_q, one_k = (
            _turned(c, _head_norm(w, n, c, t), positions)
            for n, t in (("q_norm", q[:, head]), ("k_norm", k[:, group]))
        )
        score = one_q @ one_k.T / math.sqrt(c.head_dim)
        if c.attn_logit_softcapping is not None:
            score = c.attn_logit_softcapping * torch.tanh(score / c.attn_logit_softcapping)
        weight = torch.exp(score) * allowed
        out.append(weight / weight.sum(-1, keepdim=True) @ v[:, group])
    return _linear(w, "self_attn.o_proj", torch.cat(out, -1))


def _head_norm(w: dict[str, Tensor], name: str, c: ModelWidths, x: Tensor) -> Tensor:
    if not c.qk_norm:
        return x
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + c.rms_norm_eps) * w[f"self_attn.{name}.weight"]


def _turned(c: ModelWidths, x: Tensor, positions: Tensor) -> Tensor:
    """Pairs (i, i + K/2) as complex numbers, turned by position · theta^(-2i/K)."""
    if c.position_embedding_type == "absolute":
        return x
    half = x.shape[-1] // 2
    angle = _angles(c, x.shape[-1], positions)
    turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), -1)


def _angles(c: ModelWidths, width: int, positions: Tensor) -> Tensor:
    half = width // 2
    return positions[:, None].double() * c.rope_theta ** (-torch.arange(half).double() / half)

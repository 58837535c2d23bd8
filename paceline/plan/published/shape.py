"""The shape of a published model: widths from the cells of a row, and what had to be assumed."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from paceline.plan.model import Widths, parameters
from paceline.plan.published.runs import Run

VOCABULARY = 50304
HEAD_DIM = 128
LATENT: dict[str, Any] = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "head_dim": 192,
}
"""Of multi-head latent attention where a row says no more than that: DeepSeek-V3's, which others took over."""
CLEARLY = 0.05  # of the logarithm of a parameter count: a shape that is so much nearer is the shape


def widths_of(run: Run) -> tuple[Widths, list[str]]:
    """Widths of a run's model, and what was assumed for it. The run states layers and hidden size."""
    assumed: list[str] = []
    hidden, layers = run.hidden or 0, run.layers or 0
    heads = run.heads or _assume(assumed, "heads", max(1, hidden // HEAD_DIM))
    vocab = run.vocab or _assume(assumed, "vocab", VOCABULARY)
    ffn = run.ffn or _assume(assumed, "ffn", 4 * hidden)
    stated = re.search(r"head_dim (\d+)", run.arch_extra)
    base = Widths(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=run.kv_heads or heads,
        head_dim=int(stated[1]) if stated else max(1, hidden // heads),
    )
    base = _experts(base, run)
    if "MLA" in run.arch_extra:
        base = replace(base, num_key_value_heads=heads, **LATENT)
        assumed.append("latent ranks of DeepSeek-V3")
    base = _window(base, run.arch_extra)
    return _gated(base, run), assumed


def _assume(assumed: list[str], name: str, value: int) -> int:
    assumed.append(f"{name}={value}")
    return value


def _experts(base: Widths, run: Run) -> Widths:
    if not run.experts:
        return base
    extra = run.arch_extra
    width = re.search(r"moe ffn (\d+)", extra)
    shared = re.search(r"(\d+) shared expert", extra)
    dense = re.search(r"first (?:(\d+) )?layers? dense", extra)
    first = int(dense[1] or 1) if dense else 0
    return replace(
        base,
        num_experts=run.experts,
        num_experts_per_tok=run.topk or 1,
        moe_intermediate_size=int(width[1]) if width else base.intermediate_size,
        n_shared_experts=int(shared[1]) if shared else 0,
        first_k_dense_replace=min(first, base.num_hidden_layers - 1),
    )


def _window(base: Widths, extra: str) -> Widths:
    """Sliding windows: every other layer where the row says so (128 tokens, as the one such family has), or all."""
    if "alternating sliding-window" in extra:
        kinds = ("sliding_attention", "full_attention")
        layers = tuple(kinds[i % 2] for i in range(base.num_hidden_layers))
        return replace(base, sliding_window=128, layer_types=layers)
    stated = re.search(r"sliding window (\d+)", extra)
    return replace(base, sliding_window=int(stated[1])) if stated else base


def _gated(base: Widths, run: Run) -> Widths:
    """Two or three matrices in the feed-forward, and a tied head or not: what the parameter count says, else four
    times the hidden size means two matrices, and those models tie their head."""
    plain = "no gating" in run.arch_extra or (
        base.intermediate_size == 4 * base.hidden_size and not run.experts
    )
    usual = replace(base, gated_mlp=not plain, tie_word_embeddings=plain)
    if not run.params_b:
        return usual
    options = [
        replace(base, gated_mlp=gated, tie_word_embeddings=tied)
        for gated in (not plain, plain)
        for tied in (plain, not plain)
    ]
    off = [abs(math.log(parameters(one).total / (run.params_b * 1e9))) for one in options]
    nearest, likely = min(range(4), key=off.__getitem__), min((0, 1), key=off.__getitem__)
    return options[nearest] if off[nearest] < off[likely] - CLEARLY else options[likely]

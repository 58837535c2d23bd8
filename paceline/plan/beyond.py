"""What a published model has beside our decoder's parts, counted: parameters by what cuts them, and FLOPs.

``job.beyond`` says what each part is; ``tests/plan/test_published.py`` holds the counts to the real modules.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.job.beyond import Beyond
from paceline.job.presets import ModelWidths

NONE = Beyond("")


@dataclass(frozen=True)
class More:
    """Parameters to add to a layer, by what cuts them (``model.LayerParameters``)."""

    heads: int = 0
    experts: int = 0
    whole: int = 0


def of(widths: ModelWidths) -> Beyond:
    """What the model has beside its widths."""
    return widths.beyond or NONE


def norm_numbers(widths: ModelWidths) -> int:
    """Weights and biases of one norm over the residual stream."""
    vectors = of(widths).norm_vectors
    if vectors is None:
        vectors = 2 if widths.norm == "layernorm" else 1
    return vectors * widths.hidden_size


def more_in_layer(kind: ModelWidths) -> More:
    """Of one layer of a kind, whole or as a rank holds it."""
    if kind.beyond is None:
        return More()
    beyond, h, heads = kind.beyond, kind.hidden_size, kind.num_attention_heads
    cut = heads if beyond.sinks else 0
    if beyond.value_gate:
        cut += h * heads * kind.head_dim
    if beyond.head_norm == "heads":  # in place of one head's weights for all
        cut += (heads + kind.num_key_value_heads - 2) * kind.head_dim
    whole = beyond.layer_numbers
    if beyond.head_norm == "biased":
        whole += 4 * kind.head_dim
    if beyond.latent_bias and kind.kv_lora_rank:
        whole += kind.kv_lora_rank + kind.qk_rope_head_dim + (kind.q_lora_rank or 0) + h
    experts = 0
    if kind.num_experts:
        if beyond.expert_bias:
            rows = (2 if kind.gated_mlp else 1) * kind.moe_intermediate_size + h
            experts, whole = kind.num_experts * rows, whole + kind.num_experts
        whole += h if beyond.shared_gate else 0
    return More(cut, experts, whole)


def gate_features(kind: ModelWidths) -> int:
    """Weights of attention's output gate that one token meets."""
    return kind.hidden_size * kind.num_attention_heads * kind.head_dim if of(kind).value_gate else 0


def shared_width(widths: ModelWidths) -> int:
    """Width of the experts that see every token, together."""
    return of(widths).shared_features or widths.n_shared_experts * widths.moe_intermediate_size


def outer_rows(widths: ModelWidths, vocabulary: int) -> tuple[int, int]:
    """(embedding, head) of ``vocabulary`` rows; the head is there also where it is tied."""
    width = of(widths).embedding_size or widths.hidden_size
    return vocabulary * width, vocabulary * width + (vocabulary if of(widths).head_bias else 0)


def outer_whole(widths: ModelWidths, *, embeds: bool, predicts: bool) -> int:
    """What no axis cuts outside the layers, beside positions and the last norm."""
    beyond = of(widths)
    projection = beyond.embedding_size * widths.hidden_size
    at_start = (norm_numbers(widths) if beyond.embedding_norm else 0) + projection
    return (at_start if embeds else 0) + (projection if predicts else 0)


def joined(widths: ModelWidths) -> int:
    """Numbers with which a layer that predicts a further token joins its two inputs: a matrix, and three norms."""
    return 2 * widths.hidden_size**2 + 3 * norm_numbers(widths)

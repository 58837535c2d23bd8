"""Bytes that a rank keeps between forward and backward, tensor by tensor, for our own decoder in eager mode.

``tests/plan/test_activations.py`` holds them to what autograd keeps. All are of one token unless a name says
otherwise; the tokens are those that a rank has in front of its cut sub-layers (under tp all of its rows, under cp
its part of them). Where tp cuts the residual stream, what lives in the stream counts for ``1 / tp`` of a token.
Latent values narrower than their keys are counted as they are; a CPU's kernel fills them up and keeps more.

Legend: h hidden, q query width, k key width, v width of attention's output, f features here, K experts a token,
g features of one expert, w bytes of the compute type, W of its wide type.
"""

from __future__ import annotations

from functools import lru_cache

from paceline.plan import beyond
from paceline.plan.columns import Column, least, most
from paceline.plan.model import (
    COMPUTE_BYTES,
    LOSS_CHUNK,
    WIDE_BYTES,
    Widths,
    cut,
    key_width,
    kinds,
    layer_parameters,
    norm_parameters,
    query_width,
    value_width,
)

INDEX_BYTES = 8


@lru_cache(maxsize=8192)
def layer_activation_bytes(
    kind: Widths,
    precision: str,
    sequence_length: int = 0,
    tp: int = 1,
    recompute: str = "none",
    etp: int = 1,
) -> float:
    """What one layer of a kind (as :func:`paceline.plan.model.cut` leaves it to a rank) keeps for backward.

    Args:
        sequence_length: of the whole row; only soft-capped scores keep a term of it.
        tp: ranks over which the residual stream is cut.
        recompute: as in the layout; what is computed again is not kept.
        etp: ranks that share each expert, and so gather their routed tokens.
    """
    w, h = COMPUTE_BYTES[precision], kind.hidden_size
    if recompute == "full":
        return w * h / tp
    if recompute == "selective":
        return w * h / tp + _matrix_outputs(kind, precision, tp, etp)
    stream = beyond.of(kind).norms * _norm_bytes(kind, precision) / tp
    attention = _attention_bytes(kind, precision, sequence_length)
    return stream + attention + _feed_forward_bytes(kind, precision, tp, etp)


def _norm_bytes(widths: Widths, precision: str) -> float:
    """A norm keeps its input, its normed value before the weight, and its scale; LayerNorm is one kernel in fp32."""
    w, wide, h = COMPUTE_BYTES[precision], WIDE_BYTES[precision], widths.hidden_size
    layer = widths.norm == "layernorm"
    if precision == "bf16":
        return (wide + w) * h + wide * (2 if layer else 1)
    return (w if layer else 2 * w) * h + wide * (2 if layer else 1)


def _attention_bytes(kind: Widths, precision: str, sequence_length: int) -> float:
    """The input of its projections (after tp's gather), rotated q and k, v, the output and its log-sum-exp."""
    w, wide, heads = COMPUTE_BYTES[precision], WIDE_BYTES[precision], kind.num_attention_heads
    q, k, v = query_width(kind), key_width(kind), value_width(kind)
    values = v if kind.kv_lora_rank else k
    kept: float = w * (kind.hidden_size + q + k + values + v) + wide * heads
    if kind.kv_lora_rank:
        kept += _latent_bytes(kind, precision)
    if kind.qk_norm:
        kept += (wide + w if precision == "bf16" else 2 * w) * (q + k)
        kept += wide * (heads + kind.num_key_value_heads)
    if kind.attn_logit_softcapping:
        kept += 2 * wide * (heads * sequence_length + q - k) + (wide - w) * 2 * q
    return kept


def _latent_bytes(kind: Widths, precision: str) -> float:
    """The latents with their norms. Without a wide copy, the rotated key lies in the storage of the latent."""
    w, wide = COMPUTE_BYTES[precision], WIDE_BYTES[precision]
    latents = (kind.kv_lora_rank or 0) + (kind.q_lora_rank or 0)
    scales = wide * (2 if kind.q_lora_rank else 1)
    if precision == "bf16":
        return (wide + 2 * w) * latents + scales
    return w * (3 * latents + kind.qk_rope_head_dim) + scales


def _feed_forward_bytes(kind: Widths, precision: str, tp: int, etp: int) -> float:
    """Dense or shared: the input (after tp's gather), gate, up, act(gate), product. Routed: the same in the stream,
    of which each expert gets as many tokens as the others."""
    w, wide, h = COMPUTE_BYTES[precision], WIDE_BYTES[precision], kind.hidden_size
    inner = 4 if kind.gated_mlp else 2
    if kind.hidden_act == "relu":  # keeps its output, which the next product keeps as well
        inner -= 1
    features = w * inner * kind.intermediate_size
    if not kind.num_experts:
        return w * h + features
    chosen = kind.num_experts_per_tok
    routed = wide * h + chosen * (wide * h + etp * w * (h + inner * kind.moe_intermediate_size))
    routed += wide * (2 * kind.num_experts + 2 * chosen) + 3 * INDEX_BYTES * chosen
    # The shared experts' input is the router's where that needs neither a wide copy nor a gather.
    gathered = w * h if kind.intermediate_size and (tp > 1 or w != wide) else 0
    return routed / tp + gathered + features


def _matrix_outputs(kind: Widths, precision: str, tp: int, etp: int) -> float:
    """What ``recompute=selective`` keeps: outputs of matrix products, and of attention."""
    w, wide, h = COMPUTE_BYTES[precision], WIDE_BYTES[precision], kind.hidden_size
    q, k, v = query_width(kind), key_width(kind), value_width(kind)
    matrices = 2 if kind.gated_mlp else 1
    projected = q + 2 * k
    if kind.kv_lora_rank:  # the rotated key is made once, beside the latent
        rope, latents = kind.qk_rope_head_dim, kind.kv_lora_rank + (kind.q_lora_rank or 0)
        projected = q + k + v - kind.num_attention_heads * rope + latents + rope
    kept = w * (projected + v + h) + wide * kind.num_attention_heads
    if kind.intermediate_size:
        kept += w * (matrices * kind.intermediate_size + h)
    routed = etp * kind.num_experts_per_tok * (matrices * kind.moe_intermediate_size + h)
    return kept + (w * routed + wide * kind.num_experts) / tp


def mask_bytes(kind: Widths, precision: str, sequence_length: int, cp: int = 1) -> float:
    """Of a micro-batch, in a layer whose attention needs a mask: SDPA keeps it as numbers of the compute type."""
    masked = kind.sliding_window is not None and kind.sliding_window < sequence_length
    return COMPUTE_BYTES[precision] * sequence_length**2 / cp if masked else 0.0


def outer_activation_bytes(widths: Widths, precision: str, tp: int = 1) -> float:
    """Kept outside the layers: by the last norm, the gradient of the hidden state that the loss made, the ids."""
    hidden = COMPUTE_BYTES[precision] * widths.hidden_size
    return _norm_bytes(widths, precision) / tp + hidden + INDEX_BYTES


def head_gradient_bytes(widths: Widths, precision: str, tp: int = 1) -> float:
    """Of the gradient of the head's weight, which the loss makes in its forward; once a micro-batch."""
    return WIDE_BYTES[precision] * -(-widths.vocab_size // tp) * widths.hidden_size


def loss_bytes(widths: Widths, precision: str, tokens: Column, tp: int = 1) -> Column:
    """While a chunk of tokens is scored: logits, whose memory their gradient takes, and that in the compute type.

    Either with the product that makes the head's gradient, or with the next chunk's logits beside them.
    """
    w, wide = COMPUTE_BYTES[precision], WIDE_BYTES[precision]
    chunk = max(1, LOSS_CHUNK // widths.vocab_size)
    each = (wide + (w if precision == "bf16" else 0)) * widths.vocab_size / tp
    one = each * least(tokens, chunk) + head_product_bytes(widths, precision, tp)
    return most(one, each * least(tokens, 2 * chunk))


def head_product_bytes(widths: Widths, precision: str, tp: int = 1) -> float:
    """The head's gradient in the compute type, beside the wide one: of a chunk, and later for autograd."""
    w, wide = COMPUTE_BYTES[precision], WIDE_BYTES[precision]
    return 0.0 if w == wide else head_gradient_bytes(widths, precision, tp) * w / wide


def cast_weight_bytes(widths: Widths, precision: str, tp: int = 1, ep: int = 1) -> float:
    """bfloat16 copies of the layers' weights that backward needs, on a layout that does not shard them."""
    if precision != "bf16":
        return 0.0
    layers = sum(layer_parameters(cut(kind, tp, ep)).total * len(which) for kind, which in kinds(widths))
    return 2 * float(layers + norm_parameters(widths))


@lru_cache(maxsize=8192)
def working_bytes(
    kind: Widths,
    precision: str,
    sequence_length: int = 0,
    tp: int = 1,
    recompute: str = "none",
    etp: int = 1,
) -> float:
    """Of the layer that is in its backward, beside what was kept for it; with recompute it is all there again."""
    again = 0.0
    if recompute != "none":
        again = layer_activation_bytes(kind, precision, sequence_length, tp, etp=etp)
        again -= layer_activation_bytes(kind, precision, sequence_length, tp, recompute, etp)
    return again + block_bytes(kind, precision, tp)


def block_bytes(kind: Widths, precision: str, tp: int = 1) -> float:
    """Gradients that live at once in the backward of a layer, less what has been let go of by then.

    That is where the product of act(gate) and up is differentiated: the product has gone, three gradients of its
    width are there, and that of the stream. Routed: where the experts' outputs are weighed, which takes a gradient
    of them and of their weights, in the wide type.
    """
    w, wide, h = COMPUTE_BYTES[precision], WIDE_BYTES[precision], kind.hidden_size
    dense = w * (2 if kind.gated_mlp else 1) * kind.intermediate_size + w * h
    if not kind.num_experts:
        return dense
    weighed = 2 * kind.num_experts_per_tok * wide * h + w * h + (wide * h if w != wide else 0)
    return max(dense, weighed / tp)


def split_bytes(kind: Widths, precision: str, tp: int = 1, etp: int = 1) -> float:
    """Of a layer whose backward has run for its inputs only: the gradients of its products' outputs."""
    w, h = COMPUTE_BYTES[precision], kind.hidden_size
    matrices = 2 if kind.gated_mlp else 1
    routed = etp * kind.num_experts_per_tok * (matrices * kind.moe_intermediate_size + h) / tp
    attention = query_width(kind) + 2 * key_width(kind)
    return w * (attention + matrices * kind.intermediate_size + 2 * h + routed)

"""Widths and depth of our decoder → parameters, FLOPs and activation bytes. Arithmetic, no torch.

The parameter count is exact. FLOPs follow ``CONVENTION``. Activation bytes are those that autograd keeps
for our own decoder in eager mode, tensor by tensor (``tests/plan/test_model.py`` holds them to a traced
forward); attention runs through SDPA's flash-like kernels, so there is no term in the square of the
sequence.

Legend: h hidden, q query width (heads · head_dim), k key/value width, f feed-forward, V vocabulary, s
sequence, w bytes of the compute type, W bytes of its wide type (float32, or float64 for float64).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

CONVENTION = (
    "6 FLOPs a multiply-add weight (forward and backward), embedding lookup 0, "
    "causal attention half (6·q·s), recompute not counted"
)
"""How FLOPs are counted here; the manifest repeats it beside every MFU."""

COMPUTE_BYTES = {"bf16": 2, "fp32": 4, "fp64": 8}
WIDE_BYTES = {"bf16": 4, "fp32": 4, "fp64": 8}
MASTER_BYTES = WIDE_BYTES
"""Master weights and gradients: float32, or float64 for float64."""


class Widths(Protocol):
    """What is needed of ``job.presets.ModelWidths``: the names of Hugging Face's ``config.json``."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def tie_word_embeddings(self) -> bool: ...
    @property
    def attention_bias(self) -> bool: ...


@dataclass(frozen=True)
class Parameters:
    """Parameter counts by group; ``layer`` is one block."""

    embedding: int
    attention: int
    mlp: int
    norms: int
    layers: int
    final_norm: int
    head: int

    @property
    def layer(self) -> int:
        """One block: attention, feed-forward and its two norms."""
        return self.attention + self.mlp + self.norms

    @property
    def outer(self) -> int:
        """Everything outside the blocks: embedding, last norm, head unless tied."""
        return self.embedding + self.final_norm + self.head

    @property
    def total(self) -> int:
        return self.layers * self.layer + self.outer


def parameters(widths: Widths) -> Parameters:
    """Exact counts of ``compute/models/decoder.py``: q, k, v (bias where asked for), o, gate, up, down."""
    h, q, k = widths.hidden_size, query_width(widths), key_width(widths)
    bias = q + 2 * k if widths.attention_bias else 0
    return Parameters(
        embedding=widths.vocab_size * h,
        attention=h * (q + 2 * k) + bias + q * h,
        mlp=3 * h * widths.intermediate_size,
        norms=2 * h,
        layers=widths.num_hidden_layers,
        final_norm=h,
        head=0 if widths.tie_word_embeddings else widths.vocab_size * h,
    )


def query_width(widths: Widths) -> int:
    """Heads times head dim."""
    return widths.num_attention_heads * widths.head_dim


def key_width(widths: Widths) -> int:
    """Key/value heads times head dim."""
    return widths.num_key_value_heads * widths.head_dim


def layer_flops(widths: Widths, sequence_length: int) -> tuple[int, int]:
    """(matrix, attention-core) FLOPs of one block for one token, forward and backward, by ``CONVENTION``."""
    h, q, k = widths.hidden_size, query_width(widths), key_width(widths)
    linear = 6 * (h * (q + 2 * k) + q * h + 3 * h * widths.intermediate_size)
    return linear, 6 * q * sequence_length


def head_flops(widths: Widths) -> int:
    """FLOPs of the output head for one token, forward and backward; the embedding lookup has none."""
    return 6 * widths.hidden_size * widths.vocab_size


def flops_per_token(widths: Widths, sequence_length: int) -> int:
    """Model FLOPs of one token, forward and backward, by ``CONVENTION`` (formulas: Megatron-LM's count)."""
    return widths.num_hidden_layers * sum(layer_flops(widths, sequence_length)) + head_flops(widths)


def layer_activation_bytes(widths: Widths, precision: str) -> int:
    """Bytes that one block keeps for backward, for one token.

    float32: the two norms keep input and normed value (4h) and feed their output to the projections (2h);
    rotated q and the attention output (2q), k and v (2k); gate, up, silu(gate) and the product (4f);
    log-sum-exp and the norms' scales in the wide type. bfloat16: the norms keep a float32 input.
    """
    h, q, k = widths.hidden_size, query_width(widths), key_width(widths)
    w, wide = COMPUTE_BYTES[precision], WIDE_BYTES[precision]
    norms = 2 * (wide + 2 * w) * h if precision == "bf16" else 6 * h * w
    return (
        norms + w * (2 * q + 2 * k + 4 * widths.intermediate_size) + wide * (widths.num_attention_heads + 2)
    )


def outer_activation_bytes(widths: Widths, precision: str) -> int:
    """Bytes kept outside the blocks for one token: the last norm, its output, log-probabilities, target."""
    h, w, wide = widths.hidden_size, COMPUTE_BYTES[precision], WIDE_BYTES[precision]
    norm = (wide + 2 * w) * h if precision == "bf16" else 3 * h * w
    return norm + wide * (widths.vocab_size + 1) + 8


def cast_weight_bytes(widths: Widths, precision: str) -> int:
    """bfloat16 copies of the weights that backward needs, on a layout that does not shard them."""
    count = parameters(widths)
    matmul = count.layers * count.layer + count.final_norm + widths.vocab_size * widths.hidden_size
    return 2 * matmul if precision == "bf16" else 0


def peak_activation_bytes(widths: Widths, precision: str, tokens: int) -> int:
    """The largest sum of activations that lives at once for a micro-batch of ``tokens``.

    It is reached where backward begins: everything kept, plus the two gradients of the logits in the wide
    type; or, with a small vocabulary, in the first block's backward with its own gradients.
    """
    w, wide = COMPUTE_BYTES[precision], WIDE_BYTES[precision]
    kept = widths.num_hidden_layers * layer_activation_bytes(widths, precision)
    outer = outer_activation_bytes(widths, precision)
    at_loss = 2 * wide * widths.vocab_size
    in_block = w * (4 * widths.intermediate_size + 4 * widths.hidden_size) - wide * widths.vocab_size
    return tokens * (kept + outer + max(at_loss, in_block))

"""Widths and depth of our decoder → parameters, FLOPs and activation bytes. Arithmetic, no torch.

The parameter count is exact (``tests/plan/test_model.py`` holds it to the real module). FLOPs follow
``CONVENTION``. Activation bytes are those that autograd keeps for our own decoder in eager mode, tensor by
tensor; attention runs through SDPA's flash-like kernels, so there is no term in the square of the sequence.

Layers of one *kind* are alike: with or without experts, sliding or full attention. A kind is itself written as
widths, of a model that has that kind only; so is the part of a kind that one rank holds under tp and ep. What is
said here of a layer is said of the widths of its kind.

Legend: h hidden, q query width (heads · head_dim), k key/value width, f feed-forward, V vocabulary, s
sequence, w bytes of the compute type, W bytes of its wide type (float32, or float64 for float64).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from paceline.job.presets import ModelWidths
from paceline.plan import beyond

Widths = ModelWidths

CONVENTION = (
    "6 FLOPs a multiply-add weight (forward and backward), of the experts that see a token; embedding lookup 0, "
    "causal attention half (6·q·s), inside its window where there is one; recompute not counted"
)
"""How FLOPs are counted here; the manifest repeats it beside every MFU."""

COMPUTE_BYTES = {"bf16": 2, "fp32": 4, "fp64": 8}
WIDE_BYTES = {"bf16": 4, "fp32": 4, "fp64": 8}
MASTER_BYTES = WIDE_BYTES
"""Master weights and gradients: float32, or float64 for float64."""

LOSS_CHUNK = 1 << 23
"""Logits that the loss holds at once (``compute/loss.py``)."""


@dataclass(frozen=True)
class LayerParameters:
    """One layer, by what cuts a weight: ``heads`` and ``features`` go with tp, ``experts`` with ep and etp."""

    heads: int
    features: int
    experts: int
    whole: int

    @property
    def dense(self) -> int:
        """All that is not the routed experts'."""
        return self.heads + self.features + self.whole

    @property
    def total(self) -> int:
        return self.dense + self.experts


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a model. ``layers``: each kind's layer, and how many there are."""

    embedding: int
    positions: int
    layers: tuple[tuple[LayerParameters, int], ...]
    final_norm: int
    head: int

    @property
    def outer(self) -> int:
        """Everything outside the blocks: embedding, positions, last norm, head unless tied."""
        return self.embedding + self.positions + self.final_norm + self.head

    @property
    def total(self) -> int:
        return self.outer + sum(layer.total * count for layer, count in self.layers)

    @property
    def experts(self) -> int:
        """Of all routed experts."""
        return sum(layer.experts * count for layer, count in self.layers)


Kinds = tuple[tuple[Widths, tuple[int, ...]], ...]


@lru_cache(maxsize=256)
def kinds(widths: Widths) -> Kinds:
    """The kinds of layers, in order of their first, each as widths of such layers only, with their numbers."""
    found: dict[tuple[bool, bool], list[int]] = {}
    dense = beyond.of(widths).dense_layers
    for layer in range(widths.num_hidden_layers):
        moe = widths.num_experts > 0 and layer >= widths.first_k_dense_replace and layer not in dense
        types = widths.layer_types
        slides = widths.sliding_window is not None and (types is None or types[layer] != "full_attention")
        found.setdefault((moe, slides), []).append(layer)
    return tuple((_kind(widths, *which), tuple(layers)) for which, layers in found.items())


def _kind(widths: Widths, moe: bool, slides: bool) -> Widths:
    """``intermediate_size`` of a kind is the MLP that every token meets: with experts, the shared ones."""
    uniform = replace(widths, layer_types=None, first_k_dense_replace=0)
    if not slides:
        uniform = replace(uniform, sliding_window=None)
    if moe:
        return replace(uniform, intermediate_size=beyond.shared_width(widths))
    return replace(uniform, num_experts=0, num_experts_per_tok=0, n_shared_experts=0, moe_intermediate_size=0)


@lru_cache(maxsize=4096)
def cut(kind: Widths, tp: int, ep: int = 1, etp: int = 1) -> Widths:
    """What the fullest rank holds of a kind (or of the vocabulary): its heads, features, rows and experts.

    The router knows all experts whatever ``ep`` is: :func:`layer_parameters` of a cut kind leaves that out.
    """
    if tp == ep == etp == 1:
        return kind
    return replace(
        kind,
        num_attention_heads=_part(kind.num_attention_heads, tp),
        num_key_value_heads=_part(kind.num_key_value_heads, tp),
        intermediate_size=_part(kind.intermediate_size, tp),
        vocab_size=_part(kind.vocab_size, tp),
        num_experts=_part(kind.num_experts, ep),
        moe_intermediate_size=_part(kind.moe_intermediate_size, etp),
    )


def _part(size: int, degree: int) -> int:
    """The larger part of a balanced cut; fewer units than ranks are repeated."""
    return -(-size // degree)


def held_layer(kind: Widths, tp: int = 1, ep: int = 1, etp: int = 1) -> LayerParameters:
    """One layer of a kind as the fullest rank holds it; its router is whole."""
    found = layer_parameters(cut(kind, tp, ep, etp))
    router = (kind.num_experts - -(-kind.num_experts // ep)) * kind.hidden_size
    return replace(found, whole=found.whole + router)


def held_outer(widths: Widths, tp: int = 1, *, embeds: bool = True, predicts: bool = True) -> tuple[int, int]:
    """(cut by tp, whole) of what the fullest rank of a stage holds outside the layers."""
    embedding, head = beyond.outer_rows(widths, -(-widths.vocab_size // tp))
    tied = widths.tie_word_embeddings
    rows = head if predicts else embedding
    if embeds and predicts and not tied:
        rows += embedding
    elif not embeds and not predicts:
        rows = 0
    positions = _positions(widths) if embeds else 0
    norms = beyond.of(widths).final_norms * norm_parameters(widths) if predicts else 0
    return rows, positions + norms + beyond.outer_whole(widths, embeds=embeds, predicts=predicts)


def _positions(widths: Widths) -> int:
    """Learned positions."""
    if widths.position_embedding_type != "absolute":
        return 0
    return (widths.max_position_embeddings + beyond.of(widths).more_positions) * widths.hidden_size


def rank_parameters(widths: Widths, tp: int = 1, ep: int = 1) -> int:
    """What the fullest rank holds of the whole model under tp and ep, before fsdp shards it."""
    layers = sum(held_layer(kind, tp, ep).total * len(which) for kind, which in kinds(widths))
    layers += predicted(widths) * held_further(widths, tp, ep).total
    return layers + sum(held_outer(widths, tp))


def parameters(widths: Widths) -> Parameters:
    """Exact counts of ``compute/models/decoder.py``, and of published models beside it (``beyond``)."""
    rows, head = beyond.outer_rows(widths, widths.vocab_size)
    beside = beyond.outer_whole(widths, embeds=True, predicts=True)
    layers = tuple((layer_parameters(kind), len(which)) for kind, which in kinds(widths))
    further = predicted(widths)
    return Parameters(
        embedding=rows,
        positions=_positions(widths),
        layers=layers + (((held_further(widths), further),) if further else ()),
        final_norm=beyond.of(widths).final_norms * norm_parameters(widths) + beside,
        head=head - rows if widths.tie_word_embeddings else head,
    )


def predicted(widths: Widths) -> int:
    """Layers after the last one, each of which predicts a further token (``num_nextn_predict_layers``)."""
    return beyond.of(widths).predicted


def without_predicted(widths: Widths) -> Widths:
    """The same without the layers that predict further tokens."""
    if widths.beyond is None:
        return widths
    return replace(widths, beyond=replace(widths.beyond, predicted=0))


def held_further(widths: Widths, tp: int = 1, ep: int = 1, etp: int = 1) -> LayerParameters:
    """One layer that predicts a further token: like the last kind, and what joins its inputs."""
    layer = held_layer(kinds(widths)[-1][0], tp, ep, etp)
    return replace(layer, whole=layer.whole + beyond.joined(widths))


def norm_parameters(widths: Widths) -> int:
    """One norm over the residual stream."""
    return beyond.norm_numbers(widths)


@lru_cache(maxsize=4096)
def layer_parameters(kind: Widths) -> LayerParameters:
    """One layer of a kind, whole or as a rank holds it (:func:`cut`)."""
    h = kind.hidden_size
    heads, whole = _attention_parameters(kind)
    whole += beyond.of(kind).norms * norm_parameters(kind)
    matrices = 3 if kind.gated_mlp else 2
    features = matrices * h * kind.intermediate_size
    experts = kind.num_experts * matrices * h * kind.moe_intermediate_size
    whole += kind.num_experts * h  # the router
    if kind.mlp_bias:
        features += (matrices - 1) * kind.intermediate_size
        whole += h
    more = beyond.more_in_layer(kind)
    return LayerParameters(heads + more.heads, features, experts + more.experts, whole + more.whole)


def _attention_parameters(kind: Widths) -> tuple[int, int]:
    """(cut by heads, whole) of the attention of a layer."""
    h, heads = kind.hidden_size, kind.num_attention_heads
    if kind.kv_lora_rank:
        nope, rope, value = kind.qk_nope_head_dim, kind.qk_rope_head_dim, kind.v_head_dim
        query, key_value = kind.q_lora_rank, kind.kv_lora_rank
        cut = heads * ((query or h) * (nope + rope) + key_value * (nope + value) + value * h)
        whole = h * (key_value + rope) + key_value + (h * query + query if query else 0)
        return cut, whole
    q, k = query_width(kind), key_width(kind)
    cut = h * (q + 2 * k) + q * h + (q + 2 * k if kind.attention_bias else 0)
    return cut, (h if kind.attention_output_bias else 0) + (2 * kind.head_dim if kind.qk_norm else 0)


def query_width(widths: Widths) -> int:
    """Heads times head dim."""
    return widths.num_attention_heads * widths.head_dim


def key_width(widths: Widths) -> int:
    """Key/value heads times head dim; latent attention makes a key for each query head."""
    return widths.num_key_value_heads * widths.head_dim


def value_width(widths: Widths) -> int:
    """Of the attention's output: heads times the width of a value."""
    return widths.num_attention_heads * (widths.v_head_dim if widths.kv_lora_rank else widths.head_dim)


def layer_flops(kind: Widths, sequence_length: int) -> tuple[int, int]:
    """(matrix, attention-core) FLOPs of one layer of a kind for one token, forward and backward.

    By ``CONVENTION``. A causal window of t tokens over s: t - t²/2s keys a token in the mean, which for t = s
    is the half of s (formulas: Megatron-LM's count).
    """
    linear = 6 * (attention_matrices(kind) + dense_features(kind) + expert_features(kind))
    window = min(kind.sliding_window or sequence_length, sequence_length)
    seen = window - window**2 / (2 * sequence_length)
    per_key = query_width(kind) + value_width(kind)
    return linear, round(6 * per_key * seen)


def attention_matrices(kind: Widths) -> int:
    """Weights of attention's products that one token meets."""
    if kind.kv_lora_rank:
        norms = kind.kv_lora_rank + (kind.q_lora_rank or 0)
        return sum(_attention_parameters(kind)) - norms
    matrices = kind.hidden_size * (query_width(kind) + 2 * key_width(kind) + value_width(kind))
    return matrices + beyond.gate_features(kind)


def dense_features(kind: Widths) -> int:
    """Weights of the MLP, or of the shared experts, that one token meets."""
    return (3 if kind.gated_mlp else 2) * kind.hidden_size * kind.intermediate_size


def features(kind: Widths) -> int:
    """Features of the feed-forward that one token meets."""
    return max(1, kind.intermediate_size + kind.num_experts_per_tok * kind.moe_intermediate_size)


def expert_features(kind: Widths) -> int:
    """Weights of the routed experts that one token meets."""
    matrices = 3 if kind.gated_mlp else 2
    return matrices * kind.hidden_size * kind.num_experts_per_tok * kind.moe_intermediate_size


def head_flops(widths: Widths) -> int:
    """FLOPs of the output head for one token, forward and backward; the embedding lookup has none."""
    return 6 * widths.hidden_size * widths.vocab_size


def outer_flops(widths: Widths) -> int:
    """Of all heads, and of what joins the inputs of layers that predict further tokens (formulas: ``MTP``)."""
    count = predicted(widths)
    return (1 + count) * head_flops(widths) + (6 * count * beyond.joined(widths) if count else 0)


def last_flops(widths: Widths, sequence_length: int) -> int:
    """Of what the last stage computes beside its layers: heads, and layers that predict further tokens."""
    further = predicted(widths)
    layer = sum(layer_flops(kinds(widths)[-1][0], sequence_length)) if further else 0
    return outer_flops(widths) + further * layer


def flops_per_token(widths: Widths, sequence_length: int) -> int:
    """Model FLOPs of one token, forward and backward, by ``CONVENTION``."""
    layers = sum(sum(layer_flops(kind, sequence_length)) * len(which) for kind, which in kinds(widths))
    return layers + last_flops(widths, sequence_length)

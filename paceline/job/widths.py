"""The widths of a model made whole: a preset's under the job's own, what follows from them, and what cannot be.

Every refusal names the key, what was seen beside it, and a value that fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.job.presets import ModelWidths
from paceline.ledger.outcome import Exit, Refused

LAYER_TYPES = ("full_attention", "sliding_attention")
FULL, SLIDING = LAYER_TYPES

LIKE_GPT2: Mapping[str, Any] = {
    "gated_mlp": False,
    "mlp_bias": True,
    "attention_bias": True,
    "attention_output_bias": True,
    "hidden_act": "gelu_new",
    "position_embedding_type": "absolute",
}
"""What ``norm = "layernorm"`` means where nothing else is said."""

EXPERTS = (
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_shared_experts",
    "first_k_dense_replace",
    "scoring_func",
    "norm_topk_prob",
    "routed_scaling_factor",
    "router_aux_loss_coef",
)
"""Keys that mean something only with ``num_experts``."""

LATENT = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
"""Widths of a latent head: all of them with ``kv_lora_rank``, none without."""
_DEFAULTS = {name: field.default for name, field in ModelWidths.__dataclass_fields__.items()}


def overlaid(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A preset's widths under the job's own. What followed from a replaced width follows anew."""
    base = dict(base)
    # A new number of heads asks for new key/value heads and head widths.
    if "num_attention_heads" in own or "hidden_size" in own:
        base.pop("head_dim", None)
    # A part that is taken away takes its widths along.
    for part, names in (("num_experts", EXPERTS), ("kv_lora_rank", ("q_lora_rank", *LATENT))):
        if own.get(part) == 0:
            base = {name: value for name, value in base.items() if name not in names}
    if own.get("sliding_window") == 0:
        base.pop("layer_types", None)
    if "num_hidden_layers" in own and len(base.get("layer_types") or ()) > own["num_hidden_layers"]:
        base["layer_types"] = base["layer_types"][: own["num_hidden_layers"]]
    merged = {**base, **own}
    scaling = merged.get("rope_scaling")
    if scaling and scaling.get("rope_type") == "default":
        merged["rope_scaling"] = None
    return merged


def widths_of(given: Mapping[str, Any], vocab_size: int) -> ModelWidths:
    """``given`` (a preset's widths under the job's own) made whole and checked against each other.

    Args:
        vocab_size: the tokenizer's; the model's own, where given, may be larger and never smaller.

    Raises:
        Refused: exit 2, widths that do not fit each other.
    """
    have = {name: value for name, value in given.items() if value is not None}
    for name in ("q_lora_rank", "kv_lora_rank", "sliding_window"):  # 0 says that there is none
        if have.get(name) == 0:
            del have[name]
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        if name not in have:
            raise _refused(name, "not given", "a model without a preset gives all its widths", "")
    if have.get("norm") == "layernorm":
        have = {**LIKE_GPT2, **have}
    _heads(have)
    _latent(have)
    _positions(have)
    _layer_types(have)
    _experts(have)
    own = have.setdefault("vocab_size", vocab_size)
    if own < vocab_size:
        rule = "the model's vocabulary holds every token of the tokenizer"
        raise _refused("vocab_size", f"{own}; the tokenizer has {vocab_size} tokens", rule, str(vocab_size))
    return ModelWidths(**have)


def _heads(have: dict[str, Any]) -> None:
    hidden, heads = have["hidden_size"], have["num_attention_heads"]
    key_value = have.setdefault("num_key_value_heads", heads)
    if have.get("kv_lora_rank"):
        return
    if "head_dim" not in have:
        if hidden % heads:
            near = next(n for n in range(heads, 0, -1) if hidden % n == 0)
            rule = "num_attention_heads divides hidden_size, unless head_dim is given"
            raise _refused("num_attention_heads", f"{heads}; hidden_size {hidden}", rule, str(near))
        have["head_dim"] = hidden // heads
    if heads % key_value:
        near = next(n for n in range(min(key_value, heads), 0, -1) if heads % n == 0)
        rule = "num_key_value_heads divides num_attention_heads"
        raise _refused("num_key_value_heads", f"{key_value}; {heads} attention heads", rule, str(near))
    if have["head_dim"] % 2 and have.get("position_embedding_type", "rope") == "rope":
        even = str(have["head_dim"] + 1)
        rule = "rotary embedding turns pairs: head_dim is even"
        raise _refused("head_dim", str(have["head_dim"]), rule, even)


def _latent(have: dict[str, Any]) -> None:
    """Multi-head latent attention: all of its widths or none, and none of what it does not have."""
    rank = have.get("kv_lora_rank")
    if not rank:
        extra = next((name for name in ("q_lora_rank", *LATENT) if have.get(name)), "")
        if extra:
            rule = "the widths of latent attention go with kv_lora_rank, the rank of its compression"
            seen = f"model.{extra} = {have[extra]}; no kv_lora_rank"
            raise _refused("kv_lora_rank", seen, rule, "512", whole=True)
        return
    for name in LATENT:
        if not have.get(name):
            rule = "latent attention (kv_lora_rank) gives " + ", ".join(LATENT)
            use = "64" if name == "qk_rope_head_dim" else "128"
            raise _refused(name, f"not given; kv_lora_rank {rank}", rule, use)
    if have["qk_rope_head_dim"] % 2:
        even = str(have["qk_rope_head_dim"] + 1)
        rule = "rotary embedding turns pairs: qk_rope_head_dim is even"
        raise _refused("qk_rope_head_dim", str(have["qk_rope_head_dim"]), rule, even)
    have["head_dim"] = have["qk_rope_head_dim"] + have["qk_nope_head_dim"]
    heads = have["num_attention_heads"]
    if have["num_key_value_heads"] != heads:
        rule = "latent attention makes a key and a value for every query head"
        raise _refused("num_key_value_heads", str(have["num_key_value_heads"]), rule, str(heads))
    for name, off in (("qk_norm", "false"), ("attention_bias", "false"), ("attention_output_bias", "false")):
        if have.get(name):
            raise _refused(name, "true", "latent attention has no bias, and norms of its own", off)
    if have.get("position_embedding_type", "rope") != "rope":
        rule = "latent attention rotates a part of each head (qk_rope_head_dim)"
        raise _refused("position_embedding_type", '"absolute"', rule, '"rope"')


def _positions(have: dict[str, Any]) -> None:
    if have.get("position_embedding_type") == "absolute" and have.get("rope_scaling"):
        rule = "rope_scaling changes rotary positions, and these are absolute"
        seen = 'model.rope_scaling with position_embedding_type = "absolute"'
        use = 'model.position_embedding_type = "rope"'
        raise _refused("rope_scaling", seen, rule, use, whole=True)


def _layer_types(have: dict[str, Any]) -> None:
    """One word a layer; a shorter list is a pattern that repeats; a window without a list slides everywhere."""
    layers, window = have["num_hidden_layers"], have.get("sliding_window")
    words = tuple(have.get("layer_types") or ())
    if not words:
        have["layer_types"] = (SLIDING,) * layers if window else None
        return
    if layers % len(words):
        near = [n for n in range(1, len(words) + 1) if layers % n == 0][-1]
        rule = "layer_types has num_hidden_layers words, or a pattern whose length divides them"
        seen = f"{len(words)} words; {layers} layers"
        use = "[" + ", ".join(f'"{word}"' for word in words[:near]) + "]"
        raise _refused("layer_types", seen, rule, use)
    if SLIDING in words and not window:
        rule = "layers of sliding_attention need sliding_window, the tokens that they look back"
        seen = f'model.layer_types with "{SLIDING}"; no sliding_window'
        raise _refused("sliding_window", seen, rule, "4096", whole=True)
    have["layer_types"] = words * (layers // len(words))


def _experts(have: dict[str, Any]) -> None:
    experts = have.get("num_experts", 0)
    if not experts:
        extra = next((name for name in EXPERTS if have.get(name, _DEFAULTS[name]) != _DEFAULTS[name]), "")
        if extra:
            rule = f"{extra} belongs to a mixture of experts: num_experts"
            raise _refused("num_experts", f"model.{extra} is given; no experts", rule, "8", whole=True)
        return
    chosen = have.get("num_experts_per_tok", 0)
    if not 1 <= chosen <= experts:
        rule = "num_experts_per_tok is from 1 to num_experts"
        use = str(min(2, experts) if chosen < 1 else experts)
        seen = f"{chosen or 'not given'}; {experts} experts"
        raise _refused("num_experts_per_tok", seen, rule, use)
    if not have.get("moe_intermediate_size"):
        rule = "a mixture of experts gives moe_intermediate_size, the width of one expert"
        use = str(max(1, have["intermediate_size"] // chosen))
        raise _refused("moe_intermediate_size", "not given", rule, use)
    layers, dense = have["num_hidden_layers"], have.get("first_k_dense_replace", 0)
    if dense >= layers:
        rule = "first_k_dense_replace is below num_hidden_layers: at least one layer has experts"
        raise _refused("first_k_dense_replace", f"{dense}; {layers} layers", rule, str(layers - 1))
    if have.get("mlp_bias"):
        raise _refused("mlp_bias", "true", "experts have no bias", "false")


def _refused(name: str, seen: str, rule: str, use: str, *, whole: bool = False) -> Refused:
    """``whole``: ``seen`` (and ``use``, where it names a key) stand as they are."""
    return Refused(
        f"model.{name}: these widths do not fit each other",
        exit_code=Exit.USAGE,
        key=f"model.{name}",
        seen=f"model.{name} = {seen}" if use and not whole else seen,
        rule=rule,
        use=use if use.startswith("model.") else f"model.{name} = {use}" if use else 'model.preset = "tiny"',
    )

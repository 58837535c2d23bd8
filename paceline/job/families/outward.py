"""Our decoder as a published family: the ``config.json`` and the names of weights that ``transformers`` loads.

The opposite of ``shape.py``, which the tests hold it to. Of the families that compute what the widths say, the plainest
is taken; where there is none, the reason is told and nothing is written that would load and compute something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.job.presets import ModelWidths

FULL, SLIDING = "full_attention", "sliding_attention"


class Unmapped(Exception):
    """No published family computes these widths; the text says what stands against it."""


@dataclass(frozen=True)
class Outward:
    """A family, its ``config.json`` without data types, and how it calls our tensors."""

    family: str
    config: dict[str, Any]
    experts: str = ""

    def keys(self, name: str, shape: tuple[int, ...]) -> list[tuple[str, int | None]]:
        """(its key, the expert that it holds) of each of its tensors that one of ours becomes; [] = it has none.

        Args:
            name: ours. shape: of ours; experts are stacked along the first dim.
        """
        if name.endswith("mlp.gate.fraction"):
            return []  # how the balance of training was, not a weight
        if name == "lm_head.weight":
            return [(name, None)]
        full = f"model.{name}"
        if self.experts and ".mlp.experts." in name:
            start, _, kind = full.rpartition(".mlp.experts.")
            return [(self._expert(start, number, kind), number) for number in range(shape[0])]
        if self.experts == "mixtral":
            full = full.replace(".mlp.gate.", ".block_sparse_moe.gate.")
        return [(full, None)]

    def _expert(self, start: str, number: int, kind: str) -> str:
        if self.experts == "mixtral":
            letters = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
            return f"{start}.block_sparse_moe.experts.{number}.{letters[kind]}.weight"
        return f"{start}.mlp.experts.{number}.{kind}.weight"


def outward(widths: ModelWidths) -> Outward:
    """The family that computes these widths.

    Raises:
        Unmapped: with what no family here has.
    """
    for against, why in (
        (widths.norm != "rmsnorm", "LayerNorm"),
        (not widths.gated_mlp, "an MLP without a gate"),
        (widths.position_embedding_type != "rope", "learned positions"),
        (widths.kv_lora_rank is not None, "latent attention"),
        (widths.final_logit_softcapping is not None, "capped logits"),
        (widths.attn_logit_softcapping is not None, "capped attention scores"),
        (widths.attention_output_bias and not widths.attention_bias, "a bias on attention's output alone"),
        (widths.beyond is not None, "a model that is planned and not trained"),
    ):
        if against:
            raise Unmapped(f"{why}: none of llama, mistral, mixtral, qwen2, qwen3, qwen3_moe has it")
    return _moe(widths) if widths.num_experts else _dense(widths)


def _dense(widths: ModelWidths) -> Outward:
    qkv = widths.attention_bias and not widths.attention_output_bias
    if widths.qk_norm:
        _only(
            not qkv,
            "norms of queries and keys with biases on them alone",
            "qwen3 has its bias on all four or none",
        )
        _only(not widths.mlp_bias, "norms of queries and keys, and biases in the MLP", "qwen3 has none there")
        return _as(
            "qwen3", "Qwen3ForCausalLM", widths, {"attention_bias": widths.attention_bias, **_windows(widths)}
        )
    if qkv:
        _only(
            not widths.mlp_bias, "biases of queries, keys and values, and in the MLP", "qwen2 has none there"
        )
        _only(_plain_heads(widths), "biases of queries, keys and values with a head_dim of its own", _HEADS)
        return _as("qwen2", "Qwen2ForCausalLM", widths, _windows(widths))
    if not any(_slides(widths)):
        own = {"attention_bias": widths.attention_bias, "mlp_bias": widths.mlp_bias}
        return _as("llama", "LlamaForCausalLM", widths, own)
    _only(all(_slides(widths)), "layers that slide and layers that do not", "mistral slides in all")
    _only(not widths.attention_bias and not widths.mlp_bias, "sliding layers with biases", "mistral has none")
    return _as("mistral", "MistralForCausalLM", widths, {"sliding_window": widths.sliding_window})


def _moe(widths: ModelWidths) -> Outward:
    for against, what in (
        (widths.n_shared_experts > 0, "shared experts"),
        (widths.scoring_func != "softmax", f"a router of {widths.scoring_func} scores"),
        (widths.routed_scaling_factor != 1.0, "scaled experts"),
        (widths.attention_output_bias != widths.attention_bias, "biases of queries, keys and values alone"),
        (any(_slides(widths)), "sliding layers"),
    ):
        _only(
            not against,
            f"experts with {what}",
            "mixtral and qwen3_moe have none (latent attention is not mapped)",
        )
    if widths.qk_norm:
        own = {
            "num_experts": widths.num_experts,
            "num_experts_per_tok": widths.num_experts_per_tok,
            "moe_intermediate_size": widths.moe_intermediate_size,
            "norm_topk_prob": widths.norm_topk_prob,
            "router_aux_loss_coef": widths.router_aux_loss_coef,
            "mlp_only_layers": list(range(widths.first_k_dense_replace)),
            "decoder_sparse_step": 1,
            "attention_bias": widths.attention_bias,
        }
        return _as("qwen3_moe", "Qwen3MoeForCausalLM", widths, own, experts="qwen3_moe")
    _only(
        widths.first_k_dense_replace == 0, "experts after dense layers", "mixtral has experts in every layer"
    )
    _only(widths.norm_topk_prob, "experts' weights that do not sum to one", "mixtral's do")
    _only(not widths.attention_bias, "experts with biases in attention", "mixtral has none")
    own = {
        "num_local_experts": widths.num_experts,
        "num_experts_per_tok": widths.num_experts_per_tok,
        "router_aux_loss_coef": widths.router_aux_loss_coef,
        "intermediate_size": widths.moe_intermediate_size,
        "sliding_window": None,
    }
    return _as("mixtral", "MixtralForCausalLM", widths, own, experts="mixtral")


_HEADS = "qwen2 divides hidden_size by num_attention_heads"


def _as(
    family: str, architecture: str, widths: ModelWidths, own: dict[str, Any], experts: str = ""
) -> Outward:
    config = {
        "architectures": [architecture],
        "model_type": family,
        "vocab_size": widths.vocab_size,
        "hidden_size": widths.hidden_size,
        "intermediate_size": widths.intermediate_size,
        "num_hidden_layers": widths.num_hidden_layers,
        "num_attention_heads": widths.num_attention_heads,
        "num_key_value_heads": widths.num_key_value_heads,
        "head_dim": widths.head_dim,
        "hidden_act": widths.hidden_act,
        "rms_norm_eps": widths.rms_norm_eps,
        "rope_theta": widths.rope_theta,
        "rope_scaling": dict(widths.rope_scaling) if widths.rope_scaling else None,
        "max_position_embeddings": widths.max_position_embeddings,
        "tie_word_embeddings": widths.tie_word_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "use_cache": True,
    }
    return Outward(family, {**config, **own}, experts)


def _slides(widths: ModelWidths) -> list[bool]:
    """Of each layer."""
    kinds = (
        widths.layer_types or ((SLIDING,) if widths.sliding_window else (FULL,)) * widths.num_hidden_layers
    )
    return [kind == SLIDING for kind in kinds]


def _windows(widths: ModelWidths) -> dict[str, Any]:
    """Qwen's: a switch, a window, and a word for each layer; older readers know only where sliding begins."""
    slides = _slides(widths)
    if not any(slides):
        return {"use_sliding_window": False, "sliding_window": None}
    first = slides.index(True)
    _only(all(slides[first:]), "full layers after the first that slides", "qwen's layers slide from one on")
    return {
        "use_sliding_window": True,
        "sliding_window": widths.sliding_window,
        "max_window_layers": first,
        "layer_types": [SLIDING if one else FULL for one in slides],
    }


def _plain_heads(widths: ModelWidths) -> bool:
    return widths.head_dim * widths.num_attention_heads == widths.hidden_size


def _only(holds: bool, what: str, why: str) -> None:
    if not holds:
        raise Unmapped(f"{what}: {why}")

"""Keys that only one family has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.job.families.draft import Draft
from paceline.job.families.experts import settle_dense
from paceline.job.families.windows import FULL, SLIDING

ALIBI = "positions by a slope of the scores (alibi)"
SIDE_BY_SIDE = "attention and MLP side by side"


def _falcon(draft: Draft) -> None:
    values, widths = draft.values, draft.widths
    newer, parallel = values.switch("new_decoder_architecture"), values.switch("parallel_attn", True)
    if not newer:
        widths["num_key_value_heads"] = (
            1 if values.switch("multi_query", True) else widths["num_attention_heads"]
        )
    biased = values.switch("bias")
    widths |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), biased)
    if parallel or newer:
        draft.lack(SIDE_BY_SIDE)
    two = values.whole("num_ln_in_parallel_attn") or (2 if newer else 1)
    draft.beyond["norms"] = two if newer else 1 if parallel else 2
    if values.switch("alibi"):
        draft.lack(ALIBI)


def _opt(draft: Draft) -> None:
    values, widths = draft.values, draft.widths
    biased = values.switch("enable_bias", True)
    widths |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), biased)
    if not values.switch("layer_norm_elementwise_affine", True):
        draft.beyond["norm_vectors"] = 0
    if not values.switch("do_layer_norm_before", True):
        draft.lack("norms after attention and MLP")
        draft.beyond["final_norms"] = 0
    elif values.switch("_remove_final_layer_norm"):
        draft.beyond["final_norms"] = 0
    width = values.whole("word_embed_proj_dim", 1) or widths["hidden_size"]
    if width != widths["hidden_size"]:
        draft.beyond["embedding_size"] = width
        draft.lack("projected embeddings")


def _gpt_neo(draft: Draft) -> None:
    values = draft.values
    draft.widths |= {"attention_bias": False, "attention_output_bias": True}
    given = values.raw("attention_layers")
    kinds = (
        list(values.words("attention_layers")) if given is not None else ["global", "local"] * draft.layers
    )
    window = values.whole("window_size", 1) or 256
    types = tuple(SLIDING if kind == "local" else FULL for kind in kinds[: draft.layers])
    if len(types) == draft.layers and SLIDING in types:
        draft.widths |= {"sliding_window": window, "layer_types": types}


def _gpt_bigcode(draft: Draft) -> None:
    if draft.values.switch("multi_query", True):
        draft.widths["num_key_value_heads"] = 1


def _gpt_neox(draft: Draft) -> None:
    if draft.values.switch("use_parallel_residual", True):
        draft.lack(SIDE_BY_SIDE)


def _mpt(draft: Draft) -> None:
    values, widths = draft.values, draft.widths
    ratio = values.real("expansion_ratio", 4)
    if not values.says("intermediate_size"):
        widths["intermediate_size"] = int(ratio * widths["hidden_size"])
    attention = values.table("attn_config")
    heads = attention.get("kv_n_heads")
    if isinstance(heads, int) and not isinstance(heads, bool) and heads > 0:
        widths["num_key_value_heads"] = heads


def _phi(draft: Draft) -> None:
    draft.widths["attention_bias"] = True
    if draft.values.switch("qk_layernorm"):
        draft.beyond["head_norm"] = "biased"
        draft.lack("a biased norm of queries and keys")
    draft.lack("rotary positions on a part of each head")


def _persimmon(draft: Draft) -> None:
    if draft.values.switch("qk_layernorm", True):
        draft.beyond["head_norm"] = "biased"
        draft.lack("a biased norm of queries and keys")


def _phimoe(draft: Draft) -> None:
    biased = draft.values.switch("attention_bias")
    draft.widths |= {"attention_bias": biased, "attention_output_bias": biased}


def _starcoder2(draft: Draft) -> None:
    biased = draft.values.switch("use_bias", True)
    draft.widths |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), biased)


def _cohere(draft: Draft) -> None:
    if draft.values.switch("use_qk_norm"):
        draft.beyond["head_norm"] = "heads"
        draft.widths["qk_norm"] = True
        draft.lack("norms of every head's query and key")


def _stablelm(draft: Draft) -> None:
    values = draft.values
    if values.switch("qk_layernorm"):
        draft.beyond["head_norm"] = "heads"
        draft.widths["qk_norm"] = True
        draft.lack("norms of every head's query and key")
    if values.switch("use_parallel_residual"):
        draft.beyond["norms"] = 1
        draft.lack(SIDE_BY_SIDE)


def _llama4(draft: Draft) -> None:
    """Experts in every n-th layer with one shared expert; dense layers have a width of their own."""
    values, widths = draft.values, draft.widths
    if not widths.get("num_experts"):
        return
    widths |= {"n_shared_experts": 1, "moe_intermediate_size": widths["intermediate_size"]}
    widths["intermediate_size"] = values.whole("intermediate_size_mlp", 1) or widths["intermediate_size"]
    widths.pop("first_k_dense_replace", None)
    step = values.whole("interleave_moe_layer_step", 1) or 1
    given = set(values.numbers("moe_layers")) or set(range(step - 1, draft.layers, step))
    settle_dense(draft, set(range(draft.layers)) - given)
    draft.notes.append("chunked attention is counted as full attention")
    draft.widths.pop("qk_norm", None)  # a norm without weights


def _gpt_oss(draft: Draft) -> None:
    draft.widths["mlp_bias"] = False


def _internlm2(draft: Draft) -> None:
    biased = draft.values.switch("bias")
    draft.widths |= {"attention_bias": biased, "attention_output_bias": biased}


def _ernie(draft: Draft) -> None:
    biased = draft.values.switch("use_bias")
    draft.widths |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), biased)


ODD: Mapping[str, Callable[[Draft], None]] = {
    "falcon": _falcon,
    "opt": _opt,
    "gpt_neo": _gpt_neo,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neox": _gpt_neox,
    "mpt": _mpt,
    "phi": _phi,
    "persimmon": _persimmon,
    "phimoe": _phimoe,
    "starcoder2": _starcoder2,
    "cohere": _cohere,
    "stablelm": _stablelm,
    "llama4_text": _llama4,
    "gpt_oss": _gpt_oss,
    "internlm2": _internlm2,
    "ernie4_5": _ernie,
}

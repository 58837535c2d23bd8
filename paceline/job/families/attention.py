"""Heads, latent attention, biases and norms of attention."""

from __future__ import annotations

from paceline.job.families.draft import Draft

_LATENT = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")


def read_attention(draft: Draft) -> None:
    """Into the draft: what attention is made of."""
    values, widths = draft.values, draft.widths
    heads = widths["num_attention_heads"]
    if values.whole("kv_lora_rank"):
        _latent(draft)
        return
    widths["num_key_value_heads"] = values.whole("num_key_value_heads", 1) or heads
    head = values.whole("head_dim", 1)
    if head is None and widths["hidden_size"] % heads:
        raise values.wrong("num_attention_heads", "a divisor of hidden_size, where no head_dim is given")
    widths["head_dim"] = head or widths["hidden_size"] // heads
    _biases(draft)
    if values.switch("attention_out_bias"):
        widths["attention_output_bias"] = True
    if values.switch("use_qk_norm") and not widths.get("qk_norm"):
        widths["qk_norm"] = True


def _biases(draft: Draft) -> None:
    """What the file says is said of queries, keys and values, and in most families of the output too."""
    values, fixed = draft.values, draft.family.widths
    if not values.says("attention_bias") and (
        "attention_bias" in fixed or values.raw("attention_bias") is None
    ):
        return
    bias = values.switch("attention_bias")
    draft.widths["attention_bias"] = bias
    if draft.family.bias == "all":
        draft.widths["attention_output_bias"] = bias


def _latent(draft: Draft) -> None:
    values, widths = draft.values, draft.widths
    widths["num_key_value_heads"] = widths["num_attention_heads"]
    widths["kv_lora_rank"] = values.whole("kv_lora_rank", 1)
    widths["q_lora_rank"] = values.whole("q_lora_rank") or None
    for name in _LATENT:
        widths[name] = values.needed(name)
    widths.pop("qk_norm", None)
    if values.switch("attention_bias"):
        draft.beyond["latent_bias"] = True
        draft.lack("biases of latent attention")

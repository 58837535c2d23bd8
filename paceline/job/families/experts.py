"""Mixtures of experts: how many, how wide, in which layers."""

from __future__ import annotations

from typing import Any

from paceline.job.families.draft import Draft


def read_experts(draft: Draft) -> None:
    """Into the draft: the experts, where there are any."""
    values, widths = draft.values, draft.widths
    experts = values.whole("num_experts") or 0
    if not experts:
        for name in ("scoring_func", "norm_topk_prob"):
            widths.pop(name, None)
        draft.beyond.pop("shared_gate", None)
        return
    widths["num_experts"] = experts
    widths["num_experts_per_tok"] = values.needed("num_experts_per_tok")
    widths["moe_intermediate_size"] = values.whole("moe_intermediate_size", 1) or widths["intermediate_size"]
    widths.setdefault("norm_topk_prob", values.switch("norm_topk_prob", True))
    if values.raw("routed_scaling_factor") is not None:
        widths["routed_scaling_factor"] = values.real("routed_scaling_factor", 1.0)
    if values.raw("router_aux_loss_coef") not in (None, 0, 0.0):
        widths["router_aux_loss_coef"] = values.real("router_aux_loss_coef", 0.0)
    if values.text("scoring_func") in ("softmax", "sigmoid"):
        widths["scoring_func"] = values.text("scoring_func")
    _shared(draft)
    _dense(draft)
    groups, chosen = values.whole("n_group") or 1, values.whole("topk_group") or 1
    if groups > 1 and chosen < groups:
        draft.lack(f"a router that limits a token to {chosen} of {groups} groups of experts")


def _shared(draft: Draft) -> None:
    """Experts that see every token: a number of them, or their width."""
    values, widths = draft.values, draft.widths
    one = widths["moe_intermediate_size"]
    width = values.whole("shared_expert_intermediate_size") or values.whole("shared_intermediate_size") or 0
    if width:
        widths["n_shared_experts"] = width // one
        if width % one:
            draft.beyond["shared_features"] = width
            draft.lack("a shared expert of another width")
    else:
        widths["n_shared_experts"] = values.whole("n_shared_experts") or 0
        draft.beyond.pop("shared_gate", None)


def _dense(draft: Draft) -> None:
    """Layers without experts: the first ones, or any."""
    values, layers = draft.values, draft.layers
    first = values.whole("first_k_dense_replace") or values.whole("num_dense_layers") or 0
    step = values.whole("decoder_sparse_step") or values.whole("moe_layer_freq") or 1
    only = values.numbers("mlp_only_layers")
    words = values.words("mlp_layer_types")
    dense = {n for n in range(layers) if n < first or (n + 1 - _origin(draft)) % step or n in only}
    if words:
        dense = {n for n, word in enumerate(words[:layers]) if word == "dense"}
    settle_dense(draft, dense)


def settle_dense(draft: Draft, dense: set[int]) -> None:
    """Write which layers have no experts: as the first ones where they are, else one by one."""
    widths: dict[str, Any] = draft.widths
    if len(dense) >= draft.layers:  # then there are none
        for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"):
            widths.pop(name, None)
        return
    first = next(n for n in range(draft.layers) if n not in dense)
    widths["first_k_dense_replace"] = first
    others = tuple(sorted(n for n in dense if n >= first))
    if others:
        draft.beyond["dense_layers"] = others
        draft.lack("layers with and without experts by turns")


def _origin(draft: Draft) -> int:
    """``moe_layer_freq`` counts layers from 0, ``decoder_sparse_step`` from 1."""
    return 0 if draft.values.whole("decoder_sparse_step") else 1

"""How the decoder may be cut: which modules are one unit of sharding, and along which dim each weight may go.

``recipes`` hands this table to ``deliver``, which knows axes and never a model by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from paceline.compute.models.decoder import Decoder
from paceline.job.presets import ModelWidths


@dataclass(frozen=True)
class Cut:
    """A parameter may be cut over ``axis`` along ``dim``, in ``units`` whole units (heads, rows, features, experts).

    ``repeats``: where there are more ranks than units, neighbours may hold the same one. Right for key/value heads,
    which several query heads share; anything else would be counted twice.
    """

    axis: str
    dim: int
    units: int
    repeats: bool = False


def _tp(dim: int, units: Callable[[ModelWidths], int]) -> Callable[[ModelWidths], tuple[Cut, ...]]:
    return lambda widths: (Cut("tp", dim, units(widths)),)


def _experts(dim: int) -> Callable[[ModelWidths], tuple[Cut, ...]]:
    return lambda widths: (Cut("ep", 0, widths.num_experts), Cut("etp", dim, widths.moe_intermediate_size))


def _whole(widths: ModelWidths) -> tuple[Cut, ...]:
    return ()


def _vocabulary(widths: ModelWidths) -> int:
    return widths.vocab_size


def _heads(widths: ModelWidths) -> int:
    return widths.num_attention_heads


def _key_value(widths: ModelWidths) -> tuple[Cut, ...]:
    return (Cut("tp", 0, widths.num_key_value_heads, repeats=True),)


def _features(widths: ModelWidths) -> int:
    return widths.intermediate_size


def _shared_features(widths: ModelWidths) -> int:
    return widths.n_shared_experts * widths.moe_intermediate_size


# The first pattern that matches the whole name, "layers.N." apart, decides. A parameter that none matches is a
# mistake: nothing is whole by default, since a weight that is whole where its neighbours are cut is silently wrong.
_TABLE: tuple[tuple[str, Callable[[ModelWidths], tuple[Cut, ...]]], ...] = (
    (r"(embed_tokens|lm_head)\.weight", _tp(0, _vocabulary)),
    (r"embed_positions\.weight", _whole),
    (r"(norm|input_layernorm|post_attention_layernorm)\.(weight|bias)", _whole),
    (r"self_attn\.(q_norm|k_norm|q_a_layernorm|kv_a_layernorm)\.weight", _whole),
    (r"self_attn\.(q_proj|q_b_proj|kv_b_proj)\.(weight|bias)", _tp(0, _heads)),
    (r"self_attn\.(k_proj|v_proj)\.(weight|bias)", _key_value),
    (r"self_attn\.(q_a_proj|kv_a_proj_with_mqa)\.(weight|bias)", _whole),
    (r"self_attn\.o_proj\.weight", _tp(1, _heads)),
    (r"mlp\.(gate_proj|up_proj)\.(weight|bias)", _tp(0, _features)),
    (r"mlp\.down_proj\.weight", _tp(1, _features)),
    (r"mlp\.shared_experts\.(gate_proj|up_proj)\.(weight|bias)", _tp(0, _shared_features)),
    (r"mlp\.shared_experts\.down_proj\.weight", _tp(1, _shared_features)),
    (r"self_attn\.o_proj\.bias|mlp\.(shared_experts\.)?down_proj\.bias", _whole),  # added to the complete sum
    (r"mlp\.gate\.weight", _whole),
    (r"mlp\.experts\.(gate_proj|up_proj)", _experts(1)),
    (r"mlp\.experts\.down_proj", _experts(2)),
)


def cuts_of(name: str, widths: ModelWidths) -> tuple[Cut, ...]:
    """How the parameter ``name`` may be cut; () = whole on every rank.

    Raises:
        KeyError: the table does not decide it.
    """
    inner = re.sub(r"^layers\.\d+\.", "", name)
    for pattern, cuts in _TABLE:
        if re.fullmatch(pattern, inner):
            return cuts(widths)
    raise KeyError(f"{name}: compute/models/cuts.py does not say how this parameter may be cut")


def shard_units(model: Decoder) -> list[nn.Module]:
    """Modules whose parameters are gathered together, in forward order: one per block.

    What is left (embedding, final norm, head) belongs to the root, so that a tied weight is one parameter.
    """
    return list(model.layers.values())


def expert_units(model: Decoder) -> list[nn.Module]:
    """The experts of each block that has some: sharded among the ranks that hold the same experts."""
    found = (getattr(layer.mlp, "experts", None) for layer in model.layers.values())
    return [experts for experts in found if isinstance(experts, nn.Module)]

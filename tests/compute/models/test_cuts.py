"""Every parameter of every family has a decision, and cutting by it leaves whole heads, rows and features."""

from __future__ import annotations

import pytest
import torch

from paceline.compute.models.cuts import Cut, cuts_of, expert_units, shard_units
from paceline.compute.models.decoder import Decoder
from paceline.job.presets import ModelWidths
from tests.compute.models.families import DENSE, SPARSE, widths_of

# A second statement of the table, by the last words of a name: axis and dim, in order.
DECIDED: dict[str, list[tuple[str, int]]] = {
    "embed_tokens.weight": [("tp", 0)],
    "lm_head.weight": [("tp", 0)],
    "embed_positions.weight": [],
    "norm.weight": [],
    "norm.bias": [],
    "input_layernorm.weight": [],
    "input_layernorm.bias": [],
    "post_attention_layernorm.weight": [],
    "post_attention_layernorm.bias": [],
    "self_attn.q_norm.weight": [],
    "self_attn.k_norm.weight": [],
    "self_attn.q_proj.weight": [("tp", 0)],
    "self_attn.k_proj.weight": [("tp", 0)],
    "self_attn.v_proj.weight": [("tp", 0)],
    "self_attn.q_proj.bias": [("tp", 0)],
    "self_attn.k_proj.bias": [("tp", 0)],
    "self_attn.v_proj.bias": [("tp", 0)],
    "self_attn.o_proj.weight": [("tp", 1)],
    "self_attn.o_proj.bias": [],
    "self_attn.q_a_proj.weight": [],
    "self_attn.q_a_layernorm.weight": [],
    "self_attn.q_b_proj.weight": [("tp", 0)],
    "self_attn.kv_a_proj_with_mqa.weight": [],
    "self_attn.kv_a_layernorm.weight": [],
    "self_attn.kv_b_proj.weight": [("tp", 0)],
    "mlp.gate_proj.weight": [("tp", 0)],
    "mlp.up_proj.weight": [("tp", 0)],
    "mlp.gate_proj.bias": [("tp", 0)],
    "mlp.up_proj.bias": [("tp", 0)],
    "mlp.down_proj.weight": [("tp", 1)],
    "mlp.down_proj.bias": [],
    "mlp.gate.weight": [],
    "mlp.experts.gate_proj": [("ep", 0), ("etp", 1)],
    "mlp.experts.up_proj": [("ep", 0), ("etp", 1)],
    "mlp.experts.down_proj": [("ep", 0), ("etp", 2)],
    "mlp.shared_experts.gate_proj.weight": [("tp", 0)],
    "mlp.shared_experts.up_proj.weight": [("tp", 0)],
    "mlp.shared_experts.down_proj.weight": [("tp", 1)],
}


def meta(widths: ModelWidths) -> Decoder:
    with torch.device("meta"):
        return Decoder(widths)


@pytest.mark.parametrize("family", [*DENSE, *SPARSE])
def test_every_parameter_is_decided(family: str) -> None:
    widths = widths_of(family)
    for name, parameter in meta(widths).named_parameters():
        inner = name.split(".", 2)[2] if name.startswith("layers.") else name
        cuts = cuts_of(name, widths)
        assert [(cut.axis, cut.dim) for cut in cuts] == DECIDED[inner], name
        for cut in cuts:
            assert parameter.shape[cut.dim] % cut.units == 0, (name, cut)


def test_all_that_is_decided_here_is_in_some_family() -> None:
    seen = set()
    for family in (*DENSE, *SPARSE):
        for name, _ in meta(widths_of(family)).named_parameters():
            seen.add(name.split(".", 2)[2] if name.startswith("layers.") else name)
    assert seen == set(DECIDED)


def test_units_are_heads_rows_features_and_experts() -> None:
    widths = widths_of("deepseek")
    assert cuts_of("layers.0.self_attn.q_proj.weight", widths) == (Cut("tp", 0, 4),)
    assert cuts_of("layers.0.self_attn.k_proj.bias", widths) == (Cut("tp", 0, 2, repeats=True),)
    assert cuts_of("layers.0.mlp.up_proj.weight", widths) == (Cut("tp", 0, 64),)
    assert cuts_of("layers.12.mlp.shared_experts.up_proj.weight", widths) == (Cut("tp", 0, 32),)
    assert cuts_of("layers.1.mlp.experts.down_proj", widths) == (Cut("ep", 0, 4), Cut("etp", 2, 16))
    assert cuts_of("lm_head.weight", widths) == (Cut("tp", 0, 101),)


def test_latent_attention_is_cut_by_heads() -> None:
    """Units are heads of their own width: query and key 12, key and value 14, value 6."""
    widths = widths_of("latent")
    shapes = {
        name.removeprefix("layers.1.self_attn."): p.shape for name, p in meta(widths).named_parameters()
    }
    for name, dim, width in (("q_b_proj", 0, 12), ("kv_b_proj", 0, 14), ("o_proj", 1, 6)):
        (cut,) = cuts_of(f"layers.1.self_attn.{name}.weight", widths)
        assert cut == Cut("tp", dim, 4)
        assert shapes[f"{name}.weight"][dim] == 4 * width
    assert shapes["kv_b_proj.weight"] == (4 * 14, 14)
    assert shapes["kv_a_proj_with_mqa.weight"] == (14 + 4, 32)


@pytest.mark.parametrize("name", ["layers.0.self_attn.x_proj.weight", "layers.0.mlp.gate.bias", "x", "norm"])
def test_an_unknown_name_is_not_whole_by_default(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        cuts_of(name, widths_of("llama"))


def test_units_of_sharding() -> None:
    model = meta(widths_of("deepseek"))
    assert shard_units(model) == list(model.layers.values())
    assert expert_units(model) == [model.get_submodule(f"layers.{i}.mlp.experts") for i in (1, 2, 3)]
    assert expert_units(meta(widths_of("llama"))) == []


@pytest.mark.parametrize("family", [*DENSE, *SPARSE])
def test_halves_of_every_cut_make_the_whole(family: str) -> None:
    """Two models with half of every ``tp`` cut, whose partial sums are added, are the whole: no head or bias twice."""
    from tests.compute.models.halves import loss_of_halves, loss_of_whole

    widths = widths_of(family)
    whole, halves = loss_of_whole(widths), loss_of_halves(widths)
    assert whole.keys() == halves.keys()
    floor = 1e-4 * max(float(value.abs().max()) for name, value in whole.items() if name != "loss")
    for name, value in whole.items():  # the gradient of a key's bias is zero but for rounding
        worst = float((halves[name] - value).abs().max()) / max(float(value.abs().max()), floor)
        assert worst < 1e-11, name

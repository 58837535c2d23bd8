"""Counts against the published figures, the real module and its cut table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.plan.model import flops_per_token, kinds, layer_parameters, parameters, rank_parameters


def Shape(*sizes: int, **parts: Any) -> ModelWidths:
    """Widths of a small model with some parts changed; ``sizes`` in the order of ``ModelWidths``."""
    small = dict(zip(list(ModelWidths.__dataclass_fields__), (512, 128, 344, 2, 8, 2, 16), strict=False))
    given = dict(zip(small, sizes, strict=False))
    return ModelWidths(**{**small, "max_position_embeddings": 2048, **given, **parts})


_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
_GPT2 = {"gated_mlp": False, "mlp_bias": True, "attention_bias": True, "attention_output_bias": True}
_LATENT = {
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
    "head_dim": 20,
    "num_key_value_heads": 8,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"norm": "layernorm", "hidden_act": "gelu_new", "position_embedding_type": "absolute", **_GPT2},
    "qk_norm": {"qk_norm": True},
    "relu": {"hidden_act": "relu"},
    "window": {"sliding_window": 8},
    "mixed windows": {"sliding_window": 8, "layer_types": ("sliding_attention", "full_attention")},
    "soft-cap": {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0},
    "latent": _LATENT,
    "latent query": _LATENT | {"q_lora_rank": 28},
    "moe": _MOE,
    "moe of DeepSeek": _MOE | {"n_shared_experts": 1, "first_k_dense_replace": 1, "scoring_func": "sigmoid"},
}
LLAMA_8B = Shape(128256, 4096, 14336, 32, 32, 8, 128)
LLAMA_70B = Shape(128256, 8192, 28672, 80, 64, 8, 128)
LLAMA_405B = Shape(128256, 16384, 53248, 126, 128, 8, 128)


@pytest.mark.parametrize(("shape", "gflop"), [(LLAMA_8B, 51.47), (LLAMA_70B, 449.22), (LLAMA_405B, 2523.96)])
def test_flops_per_token_reproduce_the_check_values(shape: ModelWidths, gflop: float) -> None:
    assert flops_per_token(shape, 8192) / 1e9 == pytest.approx(gflop, abs=0.005)


def test_llama_parameters_are_the_published_ones() -> None:
    assert parameters(LLAMA_8B).total == 8_030_261_248
    assert parameters(LLAMA_70B).total == 70_553_706_496
    assert parameters(LLAMA_405B).total == 405_853_388_800


@pytest.mark.parametrize(
    ("name", "length", "gflop"),
    [
        ("qwen3-30b-a3b", 4096, 23.01),
        ("qwen3-235b-a22b", 4096, 148.03),
        ("mixtral-8x7b", 4096, 79.71),
        ("deepseek-v3", 4096, 249.81),
        ("kimi-k2", 4096, 204.48),
    ],
)
def test_flops_of_experts_and_latent_attention_reproduce_the_check_values(
    name: str, length: int, gflop: float
) -> None:
    widths = Job(model=name).model.widths(1)
    assert flops_per_token(widths, length) / 1e9 == pytest.approx(gflop, rel=2e-4)


def test_flops_of_a_window_reproduce_the_check_value() -> None:
    oss = {"num_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 2880}
    widths = Shape(201088, 2880, 2880, 36, 64, 8, 64, **oss)
    half = replace(widths, sliding_window=128, layer_types=("sliding_attention", "full_attention") * 18)
    assert flops_per_token(widths, 4096) / 1e9 == pytest.approx(34.33, rel=1e-3)
    assert flops_per_token(half, 4096) / 1e9 == pytest.approx(32.63, rel=1e-3)
    wide = replace(widths, sliding_window=4096)
    assert flops_per_token(wide, 4096) == flops_per_token(widths, 4096)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_module(family: str, tied: bool) -> None:
    widths = Shape(tie_word_embeddings=tied, **FAMILIES[family])
    assert parameters(widths).total == sum(shapes(widths).values())


def shapes(widths: ModelWidths) -> dict[str, int]:
    """Parameter name → count, of the real module."""
    torch = pytest.importorskip("torch")
    from paceline.compute.models.decoder import Decoder

    with torch.device("meta"):
        model = Decoder(widths)
    return {name: p.numel() for name, p in model.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("tp", "ep"), [(2, 1), (1, 2), (2, 2), (4, 4)])
def test_what_a_rank_holds_is_what_the_cut_table_says(family: str, tp: int, ep: int) -> None:
    from paceline.compute.models.cuts import cuts_of
    from paceline.plan.layout import balanced

    widths = Shape(**FAMILIES[family])
    ep = ep if widths.num_experts else 1
    held = 0.0
    for name, count in shapes(widths).items():
        for one in cuts_of(name, widths):
            degree = {"tp": tp, "ep": ep}.get(one.axis, 1)
            units = len(balanced(one.units, degree, 0)) if one.units >= degree else 1
            count = count * units // one.units
        held += count
    counted = rank_parameters(widths, tp, ep)
    assert counted == held


def test_llama_parameters_by_what_cuts_them() -> None:
    layer = layer_parameters(kinds(LLAMA_8B)[0][0])
    assert layer.whole == 2 * 4096
    assert layer.features == 3 * 4096 * 14336
    assert layer.experts == 0


def test_kinds_are_the_layers_once() -> None:
    for parts in FAMILIES.values():
        found = [layer for _, layers in kinds(Shape(**parts)) for layer in layers]
        assert sorted(found) == [0, 1]

"""What a ``config.json`` says of its model's size and work, against the real modules and the published check values."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from paceline.job.families.shape import shape_of
from paceline.job.presets import ModelWidths
from paceline.job.widths import widths_of
from paceline.plan.cost.held import held_by
from paceline.plan.layout import Layout
from paceline.plan.model import flops_per_token, parameters, without_predicted
from paceline.plan.published_lines import published_lines
from tests.published import FOLDER, config

# Counted once with transformers 5.24 on the meta device, without weights, from the same file (of
# text_config where there is one; kimi_k2 as deepseek_v3, internlm2 as llama, whose modules they are):
#     config = CONFIG_MAPPING[model_type](**given)
#     with torch.device("meta"): model = AutoModelForCausalLM.from_config(config)
#     model.tie_weights(); sum(p.numel() for p in model.parameters())
COUNTED = {
    "bloom": 176_247_271_424,
    "command-r": 34_980_831_232,
    "command-r-plus": 103_810_674_688,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
    "falcon-40b": 41_303_293_952,
    "falcon-7b": 6_921_720_704,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-4b": 3_880_263_168,
    "gemma-7b": 8_537_680_896,
    "glm-4-9b-0414": 9_400_094_720,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "granite-3.1-8b": 8_170_848_256,
    "internlm2-7b": 7_737_708_544,
    "kimi-k2": 1_026_408_209_408,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-4-scout": 107_769_861_120,
    "minimax-m2": 228_689_748_992,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mpt-7b": 6_649_286_656,
    "olmo-2-7b": 7_298_617_344,
    "olmo-7b": 6_888_095_744,
    "olmoe-1b-7b": 6_919_161_856,
    "opt-350m": 331_196_416,
    "opt-6.7b": 6_658_473_984,
    "phi-2": 2_779_683_840,
    "phi-3-mini-4k": 3_821_079_552,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "smollm3-3b": 3_075_098_624,
    "stablelm-2-1.6b": 1_644_515_328,
    "starcoder2-3b": 3_030_371_328,
}
# The same, counted the same way, of narrow models of every family that transformers has: odd sizes show a
# bias or a norm that equal widths would hide. Less layers for further tokens, which transformers leaves out.
SMALL = json.loads((FOLDER / "small" / "families.json").read_text(encoding="utf-8"))
MTP = 11_610_067_968  # DeepSeek-V3's layer for a second token, which transformers leaves out
FLOPS = [
    ("llama-3-8b", 8192, {}, 51.47),
    ("llama-3-70b", 8192, {}, 449.22),
    ("llama-3.1-405b", 8192, {}, 2523.96),
    ("deepseek-v3", 4096, {}, 259.99),
    ("deepseek-v3", 4096, {"num_nextn_predict_layers": 0}, 249.81),
    ("qwen3-30b-a3b", 4096, {}, 23.01),
    ("qwen3-235b-a22b", 4096, {}, 148.03),
    ("kimi-k2", 4096, {}, 204.48),
    ("gpt-oss-120b", 4096, {"layer_types": None, "sliding_window": None}, 34.33),
    ("gpt-oss-120b", 4096, {}, 32.63),
    ("mixtral-8x7b", 4096, {}, 79.71),
]


def widths(name: str, **changes: Any) -> ModelWidths:
    return widths_of(shape_of(config(name) | changes, name), 1)


@cache
def whole(name: str) -> ModelWidths:
    return widths(name)


def test_every_config_is_counted() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(COUNTED)


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_those_of_the_real_module(name: str) -> None:
    assert parameters(without_predicted(whole(name))).total == COUNTED[name]


@pytest.mark.parametrize("name", SMALL)
def test_parameters_of_a_narrow_model_of_each_family(name: str) -> None:
    found = without_predicted(widths_of(shape_of(SMALL[name]["config"], name), 1))
    assert parameters(found).total == SMALL[name]["parameters"]


def test_a_layer_for_a_second_token_is_counted_and_said() -> None:
    found = whole("deepseek-v3")
    assert parameters(found).total == COUNTED["deepseek-v3"] + MTP
    said = " ".join(published_lines(found, 4096))
    assert "11.61 B parameters, 10.18 GFLOP/token" in said


@pytest.mark.parametrize(("name", "length", "changes", "gflop"), FLOPS)
def test_flops_are_the_check_values(name: str, length: int, changes: dict[str, Any], gflop: float) -> None:
    assert flops_per_token(widths(name, **changes), length) / 1e9 == pytest.approx(gflop, abs=0.006)


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("layout", ["single", "pp=2"])
def test_ranks_hold_the_whole_model_between_them(name: str, layout: str) -> None:
    """Every number is on some stage, and on one only, but a tied table, which both ends have."""
    found = whole(name)
    count = parameters(found)
    held = sum(one.total for one in held_by(Layout.parse(layout), found, 1024))  # type: ignore[arg-type]
    twice = count.embedding if found.tie_word_embeddings and layout != "single" else 0
    assert held == count.total + twice


def test_experts_of_the_further_layer_are_cut_by_ep() -> None:
    found = whole("deepseek-v3")
    (cut,) = held_by(Layout.parse("fsdp=8,ep=8"), found, 1024)  # type: ignore[arg-type]
    assert cut.experts == parameters(found).experts // 8


def test_what_a_rank_holds_of_parts_beyond_ours() -> None:
    """Attention sinks are one number a head, and go with the heads."""
    (half,) = held_by(Layout.parse("tp=2"), whole("gpt-oss-20b"), 1024)  # type: ignore[arg-type]
    sinks = 24 * 64
    bare = replace(whole("gpt-oss-20b").beyond, sinks=False)  # type: ignore[type-var]
    without = replace(whole("gpt-oss-20b"), beyond=bare)
    (less,) = held_by(Layout.parse("tp=2"), without, 1024)  # type: ignore[arg-type]
    assert half.total - less.total == sinks // 2

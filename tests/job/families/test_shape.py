"""Configs as values: what a family implies, what is assumed and said, and what is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.job.families.known import families
from paceline.job.families.shape import shape_of
from paceline.job.presets import ModelWidths, find_preset
from paceline.job.widths import widths_of
from paceline.ledger.outcome import Refused
from paceline.plan.model import flops_per_token, parameters
from tests.published import FOLDER, config

OURS = (
    "gpt2",
    "internlm2-7b",
    "llama-3-70b",
    "llama-3-8b",
    "llama-3.1-405b",
    "mistral-7b-v0.1",
    "mixtral-8x7b",
    "phi-3-mini-4k",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-235b-a22b",
    "qwen3-30b-a3b",
    "starcoder2-3b",
)
STANDARD = {
    "model_type": "newcomer",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}
STRANGE = ("x", "", -1, 0, 1.5, math.nan, math.inf, 2**70, [], [1], {}, {"a": 1}, True, None)


def widths(given: dict[str, Any]) -> ModelWidths:
    return widths_of(shape_of(given, "config.json"), 1)


def test_what_our_decoder_computes_carries_nothing_beyond() -> None:
    ours = {path.stem for path in FOLDER.glob("*.json") if widths(config(path.stem)).beyond is None}
    assert ours == set(OURS)


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "llama-3.1-405b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-30b-a3b"]
)
def test_a_config_is_the_preset_of_its_name(name: str) -> None:
    given = dict(find_preset(name).widths)
    found = widths(config(name))
    changed = {key for key, value in widths_of(given, 1).to_dict().items() if value != found.to_dict()[key]}
    assert changed <= {"rms_norm_eps", "max_position_embeddings"}


def test_a_family_that_is_not_known_is_read_by_its_standard_keys_and_that_is_said() -> None:
    found = widths(STANDARD)
    assert parameters(found).total == 2 * 1000 * 64 + 4 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
    assert found.beyond is not None
    assert "newcomer" in found.beyond.notes[0]
    layernorm = widths(STANDARD | {"layer_norm_eps": 1e-5})
    assert layernorm.norm == "layernorm"
    assert "GPT-2" in layernorm.beyond.notes[0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "key", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
)
@pytest.mark.parametrize("null", [True, False])
def test_an_essential_key_that_is_missing_is_named(key: str, null: bool) -> None:
    given = {**STANDARD, "model_type": "llama", key: None}
    if not null:
        del given[key]
    with pytest.raises(Refused) as caught:
        widths(given)
    assert caught.value.exit_code == 2
    assert key in caught.value.message
    assert f"model.{key}" in caught.value.use


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "deepseek-v3", "gemma-3-4b", "gpt-oss-20b", "falcon-40b", "gpt2"]
)
def test_strange_values_are_refused_never_a_traceback(name: str) -> None:
    whole, refused = config(name), []
    for key in whole:
        for value in STRANGE:
            try:
                found = widths(whole | {key: value})
                assert parameters(found).total > 0
                assert flops_per_token(found, 128) > 0
            except Refused as error:
                refused.append(error)
    assert refused
    assert all(error.seen and error.use for error in refused)


@pytest.mark.parametrize("value", ["4096", -4096, 0, [4096], {"a": 1}, True, 40.5, 2**40])
def test_a_wrong_size_is_refused_with_the_key_and_the_value(value: object) -> None:
    with pytest.raises(Refused) as caught:
        widths(config("llama-3-8b") | {"hidden_size": value})
    assert "hidden_size" in caught.value.message
    assert '"hidden_size": ' in caught.value.seen


def test_a_model_that_also_sees_is_counted_by_its_text_and_that_is_said() -> None:
    beyond = widths(config("gemma-3-4b")).beyond
    assert beyond is not None
    assert "only text_config of gemma3 is counted" in beyond.notes[0]
    assert "the parts of the model that are not text" in beyond.needs


def test_an_encoder_with_a_decoder_is_refused() -> None:
    with pytest.raises(Refused, match="encoder"):
        widths({"model_type": "t5", "is_encoder_decoder": True, "d_model": 512})


def test_windows_by_list_by_pattern_and_by_switch() -> None:
    assert widths(config("gemma-3-4b")).layer_types[:6] == ("sliding_attention",) * 5 + ("full_attention",)  # type: ignore[index]
    assert widths(config("gpt-oss-20b")).sliding_window == 128
    qwen = config("qwen2.5-7b") | {
        "use_sliding_window": True,
        "sliding_window": 4096,
        "max_window_layers": 20,
    }
    assert widths(qwen).layer_types == ("full_attention",) * 20 + ("sliding_attention",) * 8
    assert widths(config("qwen2.5-7b")).sliding_window is None


def test_experts_by_turns_are_layers_without_the_others() -> None:
    found = widths(config("qwen3-30b-a3b") | {"decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert found.first_k_dense_replace == 3
    assert found.beyond is not None
    assert found.beyond.dense_layers[:2] == (4, 6)


def test_yarn_is_counted_and_not_trained() -> None:
    found = widths(config("llama-3-8b") | {"rope_scaling": {"type": "yarn", "factor": 4.0}})
    assert found.beyond is not None
    assert found.beyond.needs == ("rotary positions scaled by yarn",)


def test_the_table_names_only_what_exists() -> None:
    from paceline.job.beyond import Beyond

    for family in families().values():
        assert set(family.beyond) <= set(Beyond.__dataclass_fields__)
        assert set(family.widths) <= set(ModelWidths.__dataclass_fields__)
        assert family.window in ("all", "pattern", "switch", "none")
        assert family.bias in ("all", "qkv")
        assert (family.window == "pattern") == (family.pattern > 0)
        assert not family.beyond or family.needs or family.name == "apertus"

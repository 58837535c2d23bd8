"""Presets have the published sizes; widths that do not fit each other are refused with the nearest."""

from __future__ import annotations

import pytest

from paceline.job import Job, ModelWidths
from paceline.job.presets import find_preset, presets, widths_of
from paceline.ledger.outcome import Refused

# Parameters of the published weights (safetensors index of each model's repository).
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "mistral-7b": 7_248_023_552,
    "yi-6b": 6_061_035_520,
    "yi-34b": 34_388_917_248,
}
OURS = {"nano", "tiny", "mini", "small", "medium"}


def parameters(w: ModelWidths) -> int:
    """Counted here by hand, apart from the planner's own formula."""
    q, kv, h = w.num_attention_heads * w.head_dim, w.num_key_value_heads * w.head_dim, w.hidden_size
    attention = h * q + 2 * h * kv + q * h + (q + 2 * kv if w.attention_bias else 0)
    block = attention + 3 * h * w.intermediate_size + 2 * h
    embeddings = w.vocab_size * h * (1 if w.tie_word_embeddings else 2)
    return embeddings + w.num_hidden_layers * block + h


@pytest.mark.parametrize("name", PUBLISHED)
def test_public_presets_have_the_published_size(name):
    assert parameters(Job(model=name).model.widths(256)) == PUBLISHED[name]


def test_every_preset_is_ours_or_checked():
    here = {preset.name for preset in presets().values() if not preset.arrives}
    assert here == OURS | set(PUBLISHED)


def test_tiny_is_small_and_ties():
    widths = Job().model.widths(8192)
    assert parameters(widths) == 5_294_336
    assert widths.head_dim == 64
    assert widths.tie_word_embeddings


@pytest.mark.parametrize("name", ["gpt2", "qwen3-8b", "gemma-2-9b", "mixtral-8x7b", "deepseek-v3"])
def test_families_that_need_more_are_refused_by_name(name):
    with pytest.raises(Refused, match="not in this version") as caught:
        find_preset(name)
    assert caught.value.exit_code == 2
    assert "02" in caught.value.rule


def test_unknown_preset_names_the_nearest():
    with pytest.raises(Refused) as caught:
        Job(model="llama-3.1-8B")
    assert caught.value.use == 'model.preset = "llama-3.1-8b"'


def test_own_widths_override_the_preset():
    job = Job(model={"preset": "tiny", "num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 512})
    widths = job.model.widths(300)
    assert (widths.num_hidden_layers, widths.head_dim, widths.vocab_size) == (2, 64, 300)
    assert widths.intermediate_size == 784


@pytest.mark.parametrize(
    ("widths", "key", "use"),
    [
        ({"num_attention_heads": 3}, "model.num_attention_heads", "model.num_attention_heads = 2"),
        ({"num_key_value_heads": 3}, "model.num_key_value_heads", "model.num_key_value_heads = 2"),
        ({"num_key_value_heads": 8}, "model.num_key_value_heads", "model.num_key_value_heads = 4"),
        ({"head_dim": 63}, "model.head_dim", "model.head_dim = 64"),
        ({"hidden_size": 0}, "model.hidden_size", "model.hidden_size = 256"),
        ({"rope_theta": -1.0}, "model.rope_theta", "model.rope_theta = 10000.0"),
    ],
)
def test_widths_that_do_not_fit(widths, key, use):
    with pytest.raises(Refused) as caught:
        Job(model=widths)
    error = caught.value
    assert (error.exit_code, error.key, error.use) == (2, key, use)
    assert error.rule


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused():
    job = Job(model={"vocab_size": 100})
    assert job.model.widths(100).vocab_size == 100
    with pytest.raises(Refused, match="vocab_size") as caught:
        job.model.widths(101)
    assert caught.value.use == "model.vocab_size = 101"
    assert Job(model="llama-3-8b").model.widths(101).vocab_size == 128256


def test_rope_scaling():
    job = Job(model="llama-3.1-8b")
    scaling = job.model.widths(1).rope_scaling
    assert scaling is not None
    assert scaling["rope_type"] == "llama3"
    assert scaling["factor"] == 8.0
    plain = Job(model={"preset": "llama-3.1-8b", "rope_scaling": {"rope_type": "default"}})
    assert plain.model.widths(1).rope_scaling is None


@pytest.mark.parametrize(
    "scaling",
    [
        {},
        {"rope_type": "yarn", "factor": 2.0},
        {"rope_type": "linear"},
        {"rope_type": "linear", "factor": 0.0},
        {"rope_type": "linear", "factor": float("nan")},
        {"rope_type": "linear", "factor": True},
        {"rope_type": "linear", "factor": 2.0, "extra": 1},
        {"rope_type": "llama3", "factor": 8.0},
        {"rope_type": 5},
        "linear",
    ],
)
def test_rope_scaling_that_cannot_be(scaling):
    with pytest.raises(Refused) as caught:
        Job(model={"rope_scaling": scaling})
    assert caught.value.key == "model.rope_scaling"


def test_widths_are_frozen_and_named_as_in_config_json():
    widths = widths_of({**find_preset("tiny").widths}, 512)
    with pytest.raises(AttributeError):
        widths.hidden_size = 1  # type: ignore[misc]
    hash(widths)
    assert widths.to_dict()["num_key_value_heads"] == 2

"""Presets have the published sizes; widths that do not fit each other are refused with the nearest."""

from __future__ import annotations

import json

import pytest

from paceline.job import Job, ModelWidths
from paceline.job.presets import find_preset, presets
from paceline.job.widths import widths_of
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
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-v3": 671_026_419_200 - 58 * 256,  # the router's bias is no parameter here
    "kimi-k2": 1_026_408_232_448 - 60 * 384,
    "yi-6b": 6_061_035_520,
    "yi-34b": 34_388_917_248,
}
OURS = {"nano", "tiny", "mini", "small", "medium", "tiny-moe", "tiny-gpt2", "tiny-mla"}


def parameters(w: ModelWidths) -> int:
    """Counted here by hand, apart from the planner's own formula."""
    h, layers = w.hidden_size, range(w.num_hidden_layers)
    norm = 2 * h if w.norm == "layernorm" else h
    positions = w.max_position_embeddings * h if w.position_embedding_type == "absolute" else 0
    embeddings = w.vocab_size * h * (1 if w.tie_word_embeddings else 2) + positions
    return embeddings + sum(attention(w) + mlp(w, layer) + 2 * norm for layer in layers) + norm


def attention(w: ModelWidths) -> int:
    h, heads = w.hidden_size, w.num_attention_heads
    if w.kv_lora_rank:
        nope, rope, v = w.qk_nope_head_dim, w.qk_rope_head_dim, w.v_head_dim
        q = w.q_lora_rank
        query = h * q + q + q * heads * (nope + rope) if q else h * heads * (nope + rope)
        key_value = h * (w.kv_lora_rank + rope) + w.kv_lora_rank + w.kv_lora_rank * heads * (nope + v)
        return query + key_value + heads * v * h
    q, kv = heads * w.head_dim, w.num_key_value_heads * w.head_dim
    biases = (q + 2 * kv if w.attention_bias else 0) + (h if w.attention_output_bias else 0)
    return h * q + 2 * h * kv + q * h + biases + (2 * w.head_dim if w.qk_norm else 0)


def mlp(w: ModelWidths, layer: int) -> int:
    h, f = w.hidden_size, w.intermediate_size
    if w.num_experts and layer >= w.first_k_dense_replace:
        return 3 * h * w.moe_intermediate_size * (w.num_experts + w.n_shared_experts) + h * w.num_experts
    return (3 if w.gated_mlp else 2) * h * f + (f + h if w.mlp_bias else 0)


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


@pytest.mark.parametrize("name", ["olmo-2-7b", "gemma-2-9b", "gpt-oss-120b"])
def test_families_that_need_more_are_refused_by_name(name):
    with pytest.raises(Refused, match="not in this version") as caught:
        find_preset(name)
    assert caught.value.exit_code == 2
    assert "it needs " in caught.value.rule
    assert "06" in caught.value.rule


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


MOE = {"preset": "tiny-moe"}
MLA = {"preset": "tiny-mla"}
GPT2 = {"preset": "tiny-gpt2"}


@pytest.mark.parametrize(
    ("widths", "key", "use"),
    [
        (MOE | {"num_experts_per_tok": 9}, "model.num_experts_per_tok", "model.num_experts_per_tok = 8"),
        (MOE | {"num_experts_per_tok": 0}, "model.num_experts_per_tok", "model.num_experts_per_tok = 2"),
        (
            MOE | {"moe_intermediate_size": 0},
            "model.moe_intermediate_size",
            "model.moe_intermediate_size = 392",
        ),
        (
            MOE | {"first_k_dense_replace": 4},
            "model.first_k_dense_replace",
            "model.first_k_dense_replace = 3",
        ),
        (MOE | {"mlp_bias": True}, "model.mlp_bias", "model.mlp_bias = false"),
        ({"n_shared_experts": 1}, "model.num_experts", "model.num_experts = 8"),
        ({"scoring_func": "sigmoid"}, "model.num_experts", "model.num_experts = 8"),
        ({"num_experts": 8}, "model.num_experts_per_tok", "model.num_experts_per_tok = 2"),
        (
            {"sliding_window": 64, "layer_types": ["full_attention"] * 3},
            "model.layer_types",
            'model.layer_types = ["full_attention", "full_attention"]',
        ),
        ({"layer_types": ["sliding_attention"]}, "model.sliding_window", "model.sliding_window = 4096"),
        (
            {"layer_types": ["local"]},
            "model.layer_types",
            'model.layer_types = ["sliding_attention", "full_attention"]',
        ),
        ({"kv_lora_rank": 64}, "model.qk_rope_head_dim", "model.qk_rope_head_dim = 64"),
        ({"q_lora_rank": 64}, "model.kv_lora_rank", "model.kv_lora_rank = 512"),
        ({"v_head_dim": 64}, "model.kv_lora_rank", "model.kv_lora_rank = 512"),
        (MLA | {"qk_rope_head_dim": 31}, "model.qk_rope_head_dim", "model.qk_rope_head_dim = 32"),
        (MLA | {"num_key_value_heads": 2}, "model.num_key_value_heads", "model.num_key_value_heads = 4"),
        (MLA | {"attention_bias": True}, "model.attention_bias", "model.attention_bias = false"),
        (MLA | {"qk_norm": True}, "model.qk_norm", "model.qk_norm = false"),
        (
            MLA | {"position_embedding_type": "absolute"},
            "model.position_embedding_type",
            'model.position_embedding_type = "rope"',
        ),
        (
            GPT2 | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "model.rope_scaling",
            'model.position_embedding_type = "rope"',
        ),
        ({"norm": "batchnorm"}, "model.norm", 'model.norm = "rmsnorm"'),
        ({"hidden_act": "tanh"}, "model.hidden_act", 'model.hidden_act = "silu"'),
        (
            {"final_logit_softcapping": 0.0},
            "model.final_logit_softcapping",
            "model.final_logit_softcapping = 30.0",
        ),
    ],
)
def test_parts_that_do_not_fit(widths, key, use):
    with pytest.raises(Refused) as caught:
        Job(model=widths)
    error = caught.value
    assert (error.exit_code, error.key, error.use) == (2, key, use)
    assert error.rule
    assert error.seen


def test_layernorm_means_gpt2_where_nothing_else_is_said():
    widths = Job(model={"norm": "layernorm"}).model.widths(1)
    assert (widths.gated_mlp, widths.mlp_bias, widths.hidden_act) == (False, True, "gelu_new")
    assert (widths.attention_bias, widths.attention_output_bias) == (True, True)
    assert widths.position_embedding_type == "absolute"
    mixed = Job(model={"norm": "layernorm", "gated_mlp": True, "position_embedding_type": "rope"})
    assert mixed.model.widths(1).gated_mlp
    assert mixed.model.widths(1).position_embedding_type == "rope"


def test_absolute_positions_hold_the_sequence():
    with pytest.raises(Refused) as caught:
        Job(model="gpt2", data={"sequence_length": 2048})
    assert "2048" in caught.value.seen
    assert "1024 positions" in caught.value.seen
    assert caught.value.use == "data.sequence_length = 1024"


def test_layer_types_repeat_and_a_window_alone_slides_everywhere():
    full, sliding = "full_attention", "sliding_attention"
    model = {"sliding_window": 32, "layer_types": [sliding, full]}
    assert Job(model=model).model.widths(1).layer_types == (sliding, full) * 2
    assert Job(model={"sliding_window": 32}).model.widths(1).layer_types == (sliding,) * 4
    assert Job().model.widths(1).layer_types is None


def test_parts_can_be_taken_away():
    widths = Job(model={"preset": "tiny-moe", "num_experts": 0}).model.widths(1)
    plain = Job(model={"preset": "tiny-mla", "kv_lora_rank": 0}).model.widths(1)
    assert (plain.kv_lora_rank, plain.v_head_dim, plain.head_dim) == (None, 0, 64)
    assert Job(model={"preset": "mistral-7b-v0.1", "sliding_window": 0}).model.widths(1).layer_types is None
    assert (widths.num_experts, widths.n_shared_experts, widths.first_k_dense_replace) == (0, 0, 0)


@pytest.mark.parametrize("name", sorted(presets()))
def test_presets_survive_the_job_file(name):
    if presets()[name].arrives:
        return
    job = Job(model=name, data={"sequence_length": 512})
    assert Job(**job.to_dict()) == job
    widths = job.model.widths(1)
    assert ModelWidths(**json.loads(json.dumps(widths.to_dict()))) == widths


def test_own_layer_types_survive_the_job_file():
    job = Job(model={"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]})
    assert Job(**job.to_dict()) == job
    assert "layer_types = [" in job.to_toml()


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

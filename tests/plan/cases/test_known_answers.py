"""Questions whose answer is known: each gets it, clearly, and in seconds."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.answer import Plan
from paceline.plan.layout import Layout
from tests.plan.answers import ask, job

A_MILLION = {"data__sequence_length": 1 << 20, "model__max_position_embeddings": 1 << 20}
BASE = {"train.steps": 1000, "data.tokenizer": "bpe:8192", "data.sequence_length": 4096}


def planned(preset: str, cluster: str, batch: int, layout: str = "auto", **more: Any) -> Plan:
    table = BASE | {"model.preset": preset, "train.global_batch_size": batch}
    table |= {key.replace("__", "."): value for key, value in more.items()}
    return ask(job(table), cluster, layout=layout)


def test_8b_in_full_does_not_fit_one_80_gb_device() -> None:
    with pytest.raises(Refused) as caught:
        planned("llama-3-8b", "1xH100-SXM-80GB", 64)
    assert caught.value.exit_code == Exit.MEMORY
    assert "4 such devices hold it" in caught.value.allowed
    assert "offload=all would fit" in caught.value.allowed
    assert "not in this version" in caught.value.allowed


def test_70b_needs_more_than_one_host_of_eight() -> None:
    with pytest.raises(Refused) as caught:
        planned("llama-3-70b", "8xH100-SXM-80GB", 64)
    assert caught.value.exit_code == Exit.MEMORY
    assert "such devices hold it" in caught.value.allowed


def test_70b_on_64_fits_and_is_cut() -> None:
    found = planned("llama-3-70b", "8x8xH100-SXM-80GB", 128)
    assert found.layout.world_size == 64
    assert found.layout.fsdp * found.layout.tp * found.layout.pp >= 16
    assert found.best.p_oom <= 0.1


def test_a_small_model_on_slow_links_stays_home() -> None:
    small = {"train.steps": 1000, "data.tokenizer": "bpe:8192", "data.sequence_length": 512}
    table = small | {"model.preset": "tiny", "train.global_batch_size": 64}
    slow = job(table).replace({"cluster.link.inter": "1Gbit"})
    found = ask(slow, "8x1xA100-SXM-40GB")
    assert found.layout.world_size == 1
    assert "one device" in found.reason


@pytest.mark.parametrize("preset", ["llama-3.2-1b", "llama-3.2-3b"])
def test_one_to_three_billion_fit_one_device(preset: str) -> None:
    found = planned(preset, "1xH100-SXM-80GB", 64)
    assert found.layout.world_size == 1


def test_prime_numbers_of_devices_have_an_answer() -> None:
    found = planned("llama-3.2-1b", "7xH100-SXM-80GB", 84)
    assert 2 <= found.layout.world_size <= 7


def test_a_row_of_a_million_tokens_is_cut() -> None:
    found = planned("llama-3.1-8b", "4x8xH100-SXM-80GB", 4, **A_MILLION)
    assert found.layout.cp * found.layout.tp >= 8


def test_405b_on_16_384_reaches_what_was_published() -> None:
    """Llama 3: 400 TFLOP/s a device at 8192 tokens and 2048 rows, 41 % of the peak (arXiv 2407.21783, table 4)."""
    found = planned("llama-3.1-405b", "2048x8xH100-SXM-80GB", 2048, data__sequence_length=8192)
    assert found.layout.world_size == 16_384
    assert found.best.p_oom <= 0.1
    low, mid, high = found.best.step_s
    assert low < mid * found.best.mfu / 0.41 < high


def test_deepseek_v3_on_2048_spreads_its_experts() -> None:
    """180 thousand H800-hours a trillion tokens with fp8 and kernels of its own (arXiv 2412.19437): here bf16, so
    more, and not three times as much."""
    found = planned("deepseek-v3", "256x8xH800-SXM-80GB", 15_360, "fsdp=2048,ep=64,recompute=full")
    assert found.best.p_oom <= 0.1
    hours = 1e12 / (found.best.tokens_per_s / 2048) / 3600
    assert 180e3 < hours < 540e3
    with pytest.raises(Refused) as caught:
        planned("deepseek-v3", "256x8xH800-SXM-80GB", 15_360, "fsdp=2048,ep=64,mbs=8")
    assert caught.value.exit_code == Exit.MEMORY
    gentler = Layout.parse(caught.value.use.removeprefix("--layout "))
    assert gentler.ep == 64
    assert gentler.mbs != 8


A_TRILLION = {
    "model__hidden_size": 25_600,
    "model__num_hidden_layers": 128,
    "model__num_attention_heads": 160,
    "model__num_key_value_heads": 160,
    "model__intermediate_size": 102_400,
    "model__max_position_embeddings": 2048,
    "data__sequence_length": 2048,
}


def test_a_trillion_on_3072_takes_what_was_published() -> None:
    """502 PFLOP/s with recompute, 3072 rows of 2048: 102 s a step (arXiv 2104.04473, table 1)."""
    layout = "fsdp=6:zero1,tp=8,pp=64:interleaved,mbs=1,recompute=full"
    found = planned("gpt2", "384x8xA100-SXM-80GB", 3072, layout, **A_TRILLION)
    assert found.best.step_s[1] == pytest.approx(102.4, rel=0.15)
    with pytest.raises(Refused) as caught:
        planned("gpt2", "384x8xA100-SXM-80GB", 3072, "dp=6,tp=8,pp=64:interleaved,mbs=1", **A_TRILLION)
    assert caught.value.exit_code == Exit.MEMORY


def test_64_devices_make_weeks_hours() -> None:
    long = {"train__steps": 20_000}
    one, many = (
        planned("llama-3.2-3b", name, 512, **long) for name in ("1xH100-SXM-80GB", "8x8xH100-SXM-80GB")
    )
    assert one.best.hours
    assert many.best.hours
    assert one.best.hours[1] > 24 * 14
    assert many.best.hours[1] < 24
    assert many.layout.world_size == 64


def test_ten_small_jobs_take_one_device_each() -> None:
    """By cost, a small job takes one device of sixteen: ten such jobs run side by side."""
    found = planned("tiny", "2x8xH100-SXM-80GB", 64, layout__objective="cost", data__sequence_length=256)
    assert found.layout.world_size == 1


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ("0xH100-SXM-80GB", "a cluster of nothing"),
        ("0x8xH100-SXM-80GB", "a cluster of nothing"),
        ("4xH100-SXM-80GB+4xA100-SXM-80GB", "mixes devices"),
        ("8xH100-SXM-80GB,8xA100-SXM-80GB", "mixes devices"),
    ],
)
def test_no_devices_and_mixed_devices_are_refused_by_name(cluster: str, says: str) -> None:
    with pytest.raises(Refused) as caught:
        planned("tiny", cluster, 64)
    assert caught.value.exit_code == Exit.USAGE
    assert says in caught.value.message
    assert caught.value.use.startswith("--cluster ")


def test_a_vocabulary_larger_than_the_model_is_counted() -> None:
    found = planned("tiny", "8xH100-SXM-80GB", 64, model__vocab_size=1 << 20)
    table = found.facts.work.widths.hidden_size << 20
    assert table > found.facts.work.count.total / 2
    assert found.best.memory_gib[0] * 2**30 > 4 * table / 8


def test_a_layout_that_does_not_fit_is_answered_by_its_own_gentler_form() -> None:
    """The same cut with a smaller micro-batch, or with recompute, before another cut."""
    for asked, use in (("fsdp=8,mbs=8", "fsdp=8,mbs="), ("fsdp=8,mbs=2", "fsdp=8,mbs=")):
        with pytest.raises(Refused) as caught:
            planned("llama-3-8b", "8xH100-SXM-80GB", 64, asked)
        assert caught.value.use.startswith(f"--layout {use}")
        assert planned("llama-3-8b", "8xH100-SXM-80GB", 64, caught.value.use.removeprefix("--layout "))

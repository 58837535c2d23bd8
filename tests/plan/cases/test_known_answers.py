"""Questions whose answer is known: each gets it, clearly, and in seconds."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.answer import Plan
from tests.plan.answers import ask, job

A_MILLION = {"data__sequence_length": 1 << 20, "model__max_position_embeddings": 1 << 20}
BASE = {"train.steps": 1000, "data.tokenizer": "bpe:8192", "data.sequence_length": 4096}


def planned(preset: str, cluster: str, batch: int, **more: Any) -> Plan:
    table = BASE | {"model.preset": preset, "train.global_batch_size": batch}
    return ask(job(table | {key.replace("__", "."): value for key, value in more.items()}), cluster)


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

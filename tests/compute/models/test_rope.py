"""Rotary tables: exact at every position, in every compute dtype, however often they grow (B019, B020)."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.compute.models.decoder import Decoder
from paceline.compute.models.rope import RotaryTables, inverse_frequencies
from tests.tiny import tiny_widths

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tables_are_float32_and_exact_at_4096(dtype: torch.dtype) -> None:
    tables = RotaryTables(8, 10000.0, None)
    tables.get(64, CPU, dtype)
    cos, sin = tables.get(4096, CPU, dtype)
    angle = torch.arange(4096).double()[:, None] * 10000.0 ** (-torch.arange(4).double() / 4)
    assert cos.dtype == torch.float32
    assert (cos[:, :4].double() - angle.cos()).abs().max() < 1e-7
    assert (sin[:, 4:].double() - angle.sin()).abs().max() < 1e-7


def test_casting_the_model_leaves_the_tables_alone() -> None:
    model = Decoder(tiny_widths(), dtype=torch.bfloat16)
    assert model.rotary is not None
    before = model.rotary.get(512, CPU, torch.bfloat16)[0].clone()
    model.to(torch.bfloat16)
    after = model.rotary.get(512, CPU, torch.bfloat16)[0]
    assert after.dtype == torch.float32
    assert torch.equal(before, after)


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    plain = inverse_frequencies(128, 500000.0, None)
    scaled = inverse_frequencies(128, 500000.0, scaling)
    waves = 2 * math.pi / plain
    assert torch.equal(scaled[waves < 8192 / 4], plain[waves < 8192 / 4])
    assert torch.allclose(scaled[waves > 8192], plain[waves > 8192] / 8)
    between = (waves >= 8192 / 4) & (waves <= 8192)
    assert bool(between.any())
    smooth = (8192 / waves[between] - 1.0) / (4.0 - 1.0)
    assert torch.allclose(scaled[between], (1 - smooth) * plain[between] / 8 + smooth * plain[between])


def test_positions_of_a_part_of_a_row_have_the_angles_of_the_whole() -> None:
    tables = RotaryTables(8, 10000.0, None)
    positions = torch.tensor([[0, 5, 4095], [7, 6, 1]])
    whole = tables.get(4096, CPU, torch.float32)
    for longest in (None, 4096):
        for part, table in zip(tables.at(positions, torch.float32, longest), whole, strict=True):
            assert part.dtype == torch.float32
            assert torch.allclose(part, table[positions], rtol=0, atol=1e-7)

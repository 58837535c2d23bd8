"""Initial values are a function of (seed, name, global index): any slice is bit-equal to the slice of the whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.compute.init import Fill, fill_rule, fill_slice, stream
from tests.tiny import tiny_widths

NORMAL = Fill(std=0.02)


def filled(
    shape: tuple[int, ...], *, seed: int = 7, name: str = "w", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    out = torch.empty(shape, dtype=dtype)
    fill_slice(out, NORMAL, seed=seed, name=name, shape=shape, offsets=(0,) * len(shape))
    return out


@settings(max_examples=60, deadline=None)
@given(
    st.data(),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_any_slice_is_the_slice_of_the_whole(
    data: st.DataObject, rows: int, cols: int, dtype: torch.dtype
) -> None:
    whole = filled((rows, cols), dtype=dtype)
    top, left = data.draw(st.integers(0, rows)), data.draw(st.integers(0, cols))
    bottom, right = data.draw(st.integers(top, rows)), data.draw(st.integers(left, cols))
    part = torch.empty((bottom - top, right - left), dtype=dtype)
    fill_slice(part, NORMAL, seed=7, name="w", shape=(rows, cols), offsets=(top, left))
    assert torch.equal(part, whole[top:bottom, left:right])


def test_the_generator_is_splitmix64() -> None:
    """Against the reference recurrence in unsigned arithmetic, and the same normals through NumPy's own steps."""
    start = stream(7, "w") % 2**64
    mask, expected = 2**64 - 1, []
    for index in range(1, 6):
        z = (index * 0x9E3779B97F4A7C15 + start) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        uniform = (((z ^ (z >> 31)) >> 11) + 0.5) * 2.0**-53
        expected.append(
            float(torch.erfinv(torch.tensor(2 * uniform - 1, dtype=torch.float64))) * math.sqrt(2) * 0.02
        )
    assert filled((5,), dtype=torch.float64).tolist() == expected


def test_values_are_normal_and_streams_differ() -> None:
    values = filled((400, 500), dtype=torch.float64).numpy().ravel() / 0.02
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01
    assert abs(np.mean(np.abs(values) < 1) - 0.6827) < 0.005
    other = filled((400, 500), name="v", dtype=torch.float64).numpy().ravel() / 0.02
    assert abs(np.corrcoef(values, other)[0, 1]) < 0.01
    assert not np.array_equal(values, filled((400, 500), seed=8, dtype=torch.float64).numpy().ravel() / 0.02)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layers.0.input_layernorm.weight", Fill(constant=1.0)),
        ("norm.weight", Fill(constant=1.0)),
        ("layers.3.self_attn.q_proj.bias", Fill()),
        ("embed_tokens.weight", Fill(std=0.02)),
        ("layers.1.self_attn.o_proj.weight", Fill(std=0.02 / math.sqrt(8))),
        ("layers.1.mlp.down_proj.weight", Fill(std=0.02 / math.sqrt(8))),
        ("lm_head.weight", Fill(std=0.02)),
        ("embed_positions.weight", Fill(std=0.02)),
        ("layers.0.input_layernorm.bias", Fill()),
        ("layers.0.self_attn.q_norm.weight", Fill(constant=1.0)),
        ("layers.0.self_attn.o_proj.bias", Fill()),
        ("layers.0.mlp.down_proj.bias", Fill()),
        ("layers.1.mlp.gate.weight", Fill(std=0.02)),
        ("layers.1.mlp.experts.gate_proj", Fill(std=0.02)),
        ("layers.1.mlp.experts.up_proj", Fill(std=0.02)),
        ("layers.1.mlp.experts.down_proj", Fill(std=0.02 / math.sqrt(8))),
        ("layers.1.mlp.shared_experts.down_proj.weight", Fill(std=0.02 / math.sqrt(8))),
        ("layers.1.self_attn.kv_a_layernorm.weight", Fill(constant=1.0)),
        ("layers.1.self_attn.kv_a_proj_with_mqa.weight", Fill(std=0.02)),
        ("layers.1.self_attn.kv_b_proj.weight", Fill(std=0.02)),
    ],
)
def test_rules(name: str, expected: Fill) -> None:
    assert fill_rule(name, tiny_widths()) == expected

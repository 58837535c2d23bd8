"""The global norm on one rank: against torch's, for any dtype and size, and what scaling does."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.update.clip import local_square_sum, scale_gradients


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
def test_norm_equals_torchs(dtype: torch.dtype, limit: float) -> None:
    gen = torch.Generator().manual_seed(0)
    gradients = [torch.randn(n, generator=gen, dtype=torch.float64).to(dtype) for n in (1, 7, 300_001, 65536)]
    exact = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
    assert math.sqrt(float(local_square_sum([(g, 1) for g in gradients]))) == pytest.approx(exact, rel=limit)


def test_large_gradients_of_one_size_lose_nothing() -> None:
    """A plain float32 sum of 4 million equal squares stalls at 2^24 of them; runs of 65 536 do not."""
    gradient = torch.ones(1 << 25, dtype=torch.float32)
    assert float(local_square_sum([(gradient, 1)])) == float(1 << 25)


def test_no_gradient_is_zero_and_nonfinite_is_seen() -> None:
    assert float(local_square_sum([])) == 0.0
    assert math.isnan(float(local_square_sum([(torch.tensor([1.0, float("nan")]), 1)])))
    assert math.isinf(float(local_square_sum([(torch.tensor([1.0, float("inf")]), 1)])))


def test_a_slice_that_two_ranks_hold_counts_once() -> None:
    assert float(local_square_sum([(torch.ones(6), 2)])) * 2 == pytest.approx(6.0)


def test_scaling() -> None:
    gradients = [torch.full((4,), 3.0)]
    scale_gradients(gradients, norm=6.0, max_norm=2.0)
    assert gradients[0].tolist() == [1.0] * 4
    scale_gradients(gradients, norm=2.0, max_norm=2.0)
    scale_gradients(gradients, norm=2.0, max_norm=0.0)
    assert gradients[0].tolist() == [1.0] * 4

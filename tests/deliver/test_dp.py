"""Replication: gradients are summed, once a step, in the dtype asked for, whatever is used."""

from __future__ import annotations

import pytest
import torch

from tests.deliver.traffic import expected
from tests.pool import RankPool

CASE = "tests.deliver.traffic:one_step"


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_gradients_are_summed_once_a_step(ranks: RankPool, micro_batches: int) -> None:
    """B065: held back between accumulation steps. One bucket, and torch's own small map of what was used."""
    found = ranks(2).run(CASE, layout="dp=2", micro_batches=micro_batches)
    for result in found:
        assert 1 <= result["calls"][("dp", "all_reduce")] <= 2
        for got, wanted in zip(result["gradients"], expected(2, micro_batches), strict=True):
            assert torch.allclose(got, wanted, rtol=1e-5)


def test_a_layer_that_is_never_called_does_not_hang_the_others(ranks: RankPool) -> None:
    """B067, B068."""
    found = ranks(2).run(CASE, layout="dp=2", micro_batches=2, skip=2, timeout_s=30)
    got, wanted = found[0]["gradients"], expected(2, 2, skip=2)
    assert got[2] is None or not bool(got[2].any())
    assert torch.allclose(got[0], wanted[0], rtol=1e-5)
    assert torch.allclose(got[1], wanted[1], rtol=1e-5)


def test_bf16_reduction_is_what_it_says(ranks: RankPool) -> None:
    """``train.reduce_precision = "bf16"`` changes the mathematics, by rounding and by nothing else."""
    found = ranks(2).run(CASE, layout="dp=2", reduce="bfloat16")
    for got, wanted in zip(found[0]["gradients"], expected(2, 1), strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, got.to(torch.bfloat16).float())
        assert torch.allclose(got, wanted, rtol=2e-2, atol=2e-2)
        assert not torch.equal(got, wanted)

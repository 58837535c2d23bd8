"""What each ZeRO stage sends: the table in ``deliver/fsdp.py``, counted on the wire over three micro-batches."""

from __future__ import annotations

import pytest
import torch

from tests.deliver.traffic import expected
from tests.pool import RankPool

CASE = "tests.deliver.traffic:one_step"
UNITS = 3  # layers; the root of this model has no parameters of its own
MICRO = 3


@pytest.mark.parametrize(
    ("zero", "gathers", "scatters"),
    [
        ("zero3", 2 * UNITS * MICRO, UNITS * MICRO),  # again for every forward and every backward
        ("zero2", UNITS, UNITS * MICRO),  # once a step
        ("zero1", UNITS, UNITS),  # and the gradients once
    ],
)
def test_what_a_stage_sends(ranks: RankPool, zero: str, gathers: int, scatters: int) -> None:
    found = ranks(2).run(CASE, layout=f"fsdp=2:{zero}", micro_batches=MICRO)
    for result in found:
        calls = result["calls"]
        assert calls[("fsdp", "reduce_scatter")] == scatters
        assert calls[("fsdp", "all_gather")] == gathers
        assert not any(op == "all_reduce" for _, op in calls)
    for got, wanted in zip(found[0]["gradients"], expected(2, MICRO), strict=True):
        assert torch.allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("zero", ["zero3", "zero2", "zero1"])
def test_replicas_of_shards_are_summed_once_a_step(ranks: RankPool, zero: str) -> None:
    found = ranks(4).run(CASE, layout=f"dp=2,fsdp=2:{zero}", micro_batches=MICRO)
    for result in found:
        assert result["calls"][("dp", "all_reduce")] == UNITS
    for got, wanted in zip(found[3]["gradients"], expected(4, MICRO), strict=True):
        assert torch.allclose(got, wanted, rtol=1e-5)


def test_a_layer_that_is_never_called_does_not_hang_the_others(ranks: RankPool) -> None:
    """B067, B068 for shards: its gradient is none or zero on every rank, the others' are right."""
    found = ranks(2).run(CASE, layout="fsdp=2", micro_batches=2, skip=1, timeout_s=30)
    got, wanted = found[1]["gradients"], expected(2, 2, skip=1)
    assert got[1] is None or not bool(got[1].any())
    assert torch.allclose(got[0], wanted[0], rtol=1e-5)
    assert torch.allclose(got[2], wanted[2], rtol=1e-5)

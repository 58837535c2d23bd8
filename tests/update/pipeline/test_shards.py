"""Pipelines over FSDP2: exact where the schedule keeps the backward whole, and under zero1 and zero2 where it splits
it; what each ZeRO stage sends; and what torch's own runtime gets wrong."""

from __future__ import annotations

import pytest

from tests.pool import RankPool
from tests.update.pipeline.test_runtime import CASE, agree

LAYERS, MICRO = 5, 4


@pytest.mark.parametrize("zero", ["zero1", "zero2", "zero3"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_whole_backwards_are_exact_under_every_zero(ranks: RankPool, schedule: str, zero: str) -> None:
    layout = f"fsdp=2:{zero},pp=2:{schedule}"
    agree(ranks(4).run(CASE, layout=layout, layers=LAYERS, micro_batches=MICRO), LAYERS, 2 * MICRO)


@pytest.mark.parametrize("zero", ["zero1", "zero2"])
@pytest.mark.parametrize("schedule", ["zero-bubble", "zbv", "dualpipev"])
def test_split_backwards_are_exact_while_weights_are_kept(ranks: RankPool, schedule: str, zero: str) -> None:
    layout = f"fsdp=2:{zero},pp=2:{schedule}"
    agree(ranks(4).run(CASE, layout=layout, layers=LAYERS, micro_batches=MICRO), LAYERS, 2 * MICRO)


def test_more_stages_than_torch_keeps_gathered(ranks: RankPool) -> None:
    layout = "fsdp=2:zero2,pp=2:zero-bubble,vpp=4"
    agree(ranks(4).run(CASE, layout=layout, layers=8, micro_batches=MICRO), 8, 2 * MICRO)


def test_calls_in_a_row_over_shards(ranks: RankPool) -> None:
    for zero in ("zero1", "zero3"):
        found = ranks(4).run(CASE, layout=f"fsdp=2:{zero},pp=2", layers=3, micro_batches=2, calls=3)
        agree(found, 3, 12)

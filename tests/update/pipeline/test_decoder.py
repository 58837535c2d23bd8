"""The decoder in stages equals the decoder: every schedule, tied embeddings, experts, recompute."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from tests.pool import RankPool
from tests.update.pipeline.decoder_case import one_device

EXACT = 1e-12
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "router_aux_loss_coef": 0.05,
    "first_k_dense_replace": 1,
}


def agree(ranks: RankPool, layout: str, micro_batches: int, changes: dict[str, Any]) -> int:
    """Loss and gradients against one device; how many forwards of blocks there were in all."""
    loss, wanted = one_device(changes, micro_batches)
    case = "tests.update.pipeline.decoder_case:step"
    found = ranks(2).run(case, layout=layout, micro_batches=micro_batches, changes=changes)
    sums: dict[str, Tensor] = {}
    for rank in found:
        for name, gradient in rank["gradients"]:
            sums[name] = sums[name] + gradient if name in sums else gradient  # tied over stages: by hand here
    floor = 1e-4 * max(float(g.norm()) for g in wanted.values())
    assert sum(rank["loss"] for rank in found) == pytest.approx(loss, rel=EXACT)
    assert sums.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert float((sums[name] - gradient).norm()) / max(float(gradient.norm()), floor) < EXACT, name
    return sum(rank["blocks"] for rank in found)


@pytest.mark.parametrize(
    "layout", ["pp=2:gpipe", "pp=2", "pp=2:interleaved", "pp=2:zero-bubble", "pp=2:zbv", "pp=2:dualpipev"]
)
def test_five_layers_in_stages(ranks: RankPool, layout: str) -> None:
    agree(ranks, layout, 4, {"num_hidden_layers": 5})


@pytest.mark.parametrize("layout", ["pp=2", "pp=2:zbv"])
def test_tied_embeddings(ranks: RankPool, layout: str) -> None:
    """B010, but for the sum: with a V both copies are on one rank."""
    agree(ranks, layout, 4, {"tie_word_embeddings": True})


@pytest.mark.parametrize("layout", ["pp=2", "pp=2:zbv", "pp=2:zero-bubble"])
def test_experts_in_inner_stages_have_their_auxiliary_loss(ranks: RankPool, layout: str) -> None:
    agree(ranks, layout, 4, EXPERTS)


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("layout", ["pp=2", "pp=2:zbv", "pp=2:dualpipev"])
def test_recompute(ranks: RankPool, layout: str, recompute: str) -> None:
    layers, micro_batches = 4, 4
    once = layers * micro_batches
    assert agree(ranks, f"{layout},recompute={recompute}", micro_batches, {}) == 2 * once
    assert agree(ranks, layout, micro_batches, {}) == once

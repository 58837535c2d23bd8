"""A checkpoint of any layout is read on any other: every weight, moment and buffer, bit for bit (kinds WS TIE MOE)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.plan.layout import Layout
from tests.pool import RankPool
from tests.recipes import checkpoint_cases as cases
from tests.tiny import tiny_job, tiny_widths

CASES = "tests.recipes.checkpoint_cases:"
TIED = {"tie_word_embeddings": True, "attention_bias": True}
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "scoring_func": "sigmoid", "router_aux_loss_coef": 0.05,
}  # fmt: skip
PAIRS = [
    ("fsdp=2,tp=2", "pp=2,dp=2", TIED),
    ("pp=2:zbv", "tp=4", TIED),
    ("tp=2,pp=2", "single", TIED),
    ("single", "cp=2,fsdp=2", TIED),
    ("fsdp=2,ep=2,tp=2", "ep=4,pp=2,tp=2,cp=2", EXPERTS),
    ("pp=2,fsdp=2,ep=2", "single", EXPERTS),
]


def _run(ranks: RankPool, name: str, layout: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    world = Layout.parse(layout).world_size
    if world == 1:
        return [getattr(cases, name)(None, layout=layout, **arguments)]
    return ranks(world).run(CASES + name, timeout_s=90, layout=layout, **arguments)


@pytest.mark.parametrize(("saved", "read", "features"), PAIRS, ids=[f"{a} to {b}" for a, b, _ in PAIRS])
def test_any_layout_reads_any_other(
    ranks: RankPool, tmp_path: Path, saved: str, read: str, features: dict[str, Any]
) -> None:
    arguments = {"folder": str(tmp_path), "job": tiny_job(), "widths": tiny_widths(**features)}
    before = _run(ranks, "save_on", saved, arguments)
    after = _run(ranks, "load_on", read, arguments)
    for what in ("weights", "exp_avg", "exp_avg_sq"):
        for name, tensor in before[0][what].items():
            assert torch.equal(after[-1][what][name], tensor), f"{what} of {name}"
    buffers = {n: b for result in before for n, b in result["buffers"].items()}
    for result in after:
        for name, tensor in result["buffers"].items():
            assert torch.equal(tensor, buffers[name]), name
    if features is EXPERTS:
        assert any(b.std() > 0 for b in buffers.values()), "the routers have counted nothing"


def test_training_goes_on_as_if_nothing_had_happened(ranks: RankPool, tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path), "job": tiny_job(), "widths": tiny_widths(**EXPERTS)}
    _run(ranks, "save_on", "fsdp=2,ep=2", arguments)
    one = _run(ranks, "load_on", "single", arguments | {"more": 2})[0]
    for layout in ("tp=2,ep=2,pp=2", "fsdp=2,ep=2"):
        for result in _run(ranks, "load_on", layout, arguments | {"more": 2}):
            for name, tensor in one["weights"].items():
                assert torch.allclose(result["weights"][name], tensor, rtol=1e-9, atol=1e-12), (layout, name)

"""Rows of the fault log about experts and random state: MOE BAL RNG. A row's number is in the name of its test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.open_rows_cases import agree, given, train
from tests.pool import RankPool
from tests.tiny import tiny_job, tiny_widths

CASES = "tests.faults.open_rows_cases:"
SIGMOID = {
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "router_aux_loss_coef": 0.05,
    "scoring_func": "sigmoid", "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
SOFTMAX = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "router_aux_loss_coef": 0.05,
}


def test_b047_experts_without_tokens_do_not_stop_anybody(ranks: RankPool) -> None:
    """All tokens to one expert of eight, new memory full of NaN: most ranks have none, and those gradients are zero."""
    arguments = given(3, **{**SIGMOID, "num_experts_per_tok": 1, "norm_topk_prob": False})
    arguments |= {"poisoned": True, "experts": [1]}
    one = agree(ranks, ["fsdp=2,tp=2,ep=4", "pp=2,fsdp=2,ep=2"], mbs=2, **arguments)
    used = one["first"]["layers.2.mlp.experts.down_proj"].flatten(1).abs().sum(1) > 0
    assert used.tolist() == [expert == 1 for expert in range(8)]
    assert one["rows"][0]["expert_load_max"] == 8.0
    agree(ranks, ["fsdp=2:zero1", "cp=2,ep=2"], mbs=2, **arguments)


def test_b048_three_steps_of_top_2_over_ep(ranks: RankPool) -> None:
    """New memory full of NaN; the gradient of the routers is the sum over the ranks that share experts."""
    arguments = given(3, **SOFTMAX) | {"poisoned": True}
    one = agree(ranks, ["fsdp=2,ep=2", "dp=2,ep=2", "tp=2,etp=2"], mbs=2, **arguments)
    assert float(one["first"]["layers.1.mlp.gate.weight"].norm()) > 0
    agree(ranks, ["fsdp=4,ep=4", "pp=2,tp=2,ep=2", "fsdp=2,tp=2,ep=2,etp=2"], mbs=2, **arguments)


@pytest.mark.parametrize("scoring", [SOFTMAX, SIGMOID], ids=["softmax", "sigmoid"])
def test_b051_the_logged_balance_loss_is_that_of_one_device(ranks: RankPool, scoring: dict[str, Any]) -> None:
    """No token is dropped, so the loss counts them all, on every layout; stages log their sum."""
    arguments = given(3, **scoring)
    one = agree(ranks, ["dp=2", "fsdp=2,ep=2", "cp=2", "pp=2"], mbs=2, **arguments)
    losses = [row["aux_loss"] for row in one["rows"]]
    layers = 4 - scoring.get("first_k_dense_replace", 0)
    assert losses[0] == pytest.approx(
        0.05 * layers, rel=1e-9
    )  # the fractions of the step before are even at first
    assert len({round(loss, 9) for loss in losses}) == 3
    agree(ranks, ["pp=4", "tp=2,cp=2,ep=2"], mbs=2, **arguments)


def test_b052_a_skewed_router_has_another_balance_loss_than_an_even_one() -> None:
    """By the value that is logged: two of eight experts have all the tokens."""
    arguments = given(2, **{**SIGMOID, "router_aux_loss_coef": 1.0})
    even, skewed = (
        train(None, layout="single", mbs=8, **arguments, experts=experts)["rows"] for experts in ([], [0, 1])
    )
    assert even[0]["aux_loss"] == pytest.approx(skewed[0]["aux_loss"], rel=1e-9)
    assert abs(even[1]["aux_loss"] - skewed[1]["aux_loss"]) > 1e-3  # small: fresh routers have even scores
    assert skewed[1]["expert_load_max"] == 4.0
    assert even[1]["expert_load_max"] < 4.0


def test_b012_no_result_depends_on_random_numbers_that_a_rank_has_drawn(ranks: RankPool) -> None:
    """There is no dropout, so no mask: bit for bit the same when each rank draws other numbers between the steps."""
    for size, layouts in ((2, ["tp=2", "cp=2", "fsdp=2,ep=2"]), (4, ["tp=2,pp=2"])):
        arguments = {**given(3, **SOFTMAX), "precision": "fp32", "mbs": 2}
        runs = [{**arguments, "layout": x, "noise": noise} for x in layouts for noise in (False, True)]
        for rank in ranks(size).run(f"{CASES}several", timeout_s=110, runs=runs):
            for quiet, noisy in zip(rank[::2], rank[1::2], strict=True):
                assert quiet["losses"] == noisy["losses"]
                for name, tensor in quiet["weights"].items():
                    assert torch.equal(noisy["weights"][name], tensor), name


@pytest.mark.parametrize("layout", ["fsdp=2,ep=2", "tp=2,ep=2"])
def test_b013_a_resumed_run_of_experts_is_bit_equal(ranks: RankPool, tmp_path: Path, layout: str) -> None:
    """Whatever random state its ranks have then."""
    arguments = {"folder": str(tmp_path), "job": tiny_job(), "widths": tiny_widths(**SIGMOID)}
    assert ranks(2).run(
        "tests.faults.open_rows_run_cases:resumed", timeout_s=100, layout=layout, **arguments
    ) == [[], []]

"""Experts on several ranks against the same layer on one device, in float64, with new memory full of NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.compute.models.balance import Balance
from paceline.compute.models.moe import MoE
from paceline.compute.seams import Seams
from paceline.job.presets import ModelWidths
from tests.deliver import ep_cases
from tests.pool import RankPool
from tests.tiny import tiny_widths

HIDDEN, STEPS = 8, 3


def moe_widths(**changes: Any) -> ModelWidths:
    base: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 6,
        "router_aux_loss_coef": 0.1,
    }
    return tiny_widths(**{**base, **changes})


def state_of(widths: ModelWidths, skew: float) -> dict[str, Tensor]:
    """Weights for which expert 1 is ahead by ``skew`` on every token that has a positive first entry."""
    gen = torch.Generator().manual_seed(3)
    layer = MoE(widths, 0, Seams(), Balance(widths)).to(torch.float64)
    state = layer.state_dict()
    for name, value in state.items():
        if name.endswith(("weight", "proj")):
            value.copy_(torch.randn(value.shape, generator=gen, dtype=value.dtype) * 0.4)
    state["gate.weight"][1, 0] += skew
    return state


def batches_of(lengths: list[int]) -> list[list[Tensor]]:
    gen = torch.Generator().manual_seed(5)
    steps = []
    for _ in range(STEPS):
        parts = [torch.randn(1, n, HIDDEN, generator=gen, dtype=torch.float64) for n in lengths]
        steps.append([torch.cat((part[..., :1].abs() + 0.5, part[..., 1:]), -1) for part in parts])
    return steps


def close(got: Tensor, wanted: Tensor, largest: float) -> None:
    assert not got.isnan().any()
    error = (got - wanted).norm() / max(float(wanted.norm()), 1e-4 * largest)
    assert error < 1e-12


CASES = [
    pytest.param(2, 1, [6, 6], 0.0, {}, id="ep2"),
    pytest.param(4, 1, [5, 1, 9, 3], 0.0, {"scoring_func": "sigmoid"}, id="ep4-sigmoid-ragged"),
    pytest.param(
        2, 1, [7, 5], 50.0, {"num_experts_per_tok": 1, "norm_topk_prob": False}, id="ep2-all-to-one"
    ),
    pytest.param(4, 1, [4, 0, 3, 0], 3.0, {}, id="ep4-empty-ranks"),
    pytest.param(2, 1, [1, 0], 0.0, {}, id="ep2-one-token"),
    pytest.param(2, 2, [4, 4], 2.0, {}, id="etp2"),
    pytest.param(4, 2, [3, 3, 2, 2], 2.0, {}, id="ep2-etp2"),
]


@pytest.mark.parametrize(("size", "etp", "lengths", "skew", "changes"), CASES)
def test_equal_to_one_device(
    ranks: RankPool, size: int, etp: int, lengths: list[int], skew: float, changes: dict[str, Any]
) -> None:
    """B048: three steps, every gradient, the router's summed over the ranks, nothing of fresh memory in them."""
    widths = moe_widths(**changes)
    given: dict[str, Any] = {
        "widths": widths,
        "state": state_of(widths, skew),
        "batches": batches_of(lengths),
    }
    wanted = ep_cases.train(None, **given)
    found = ranks(size).run("tests.deliver.ep_cases:train", **given, etp=etp)
    for rank, got in enumerate(found):
        assert got["losses"] == pytest.approx(wanted["losses"], rel=1e-12)
        for step in range(STEPS):
            largest = max(float(g.norm()) for g in wanted["grads"][step].values())
            for name, grad in got["grads"][step].items():
                close(grad, wanted["grads"][step][name], largest)
        for name, weight in got["weights"].items():
            close(weight, wanted["weights"][name], 1.0)
        close(got["inputs"][0], wanted["inputs"][rank], 1.0)
        assert torch.equal(got["fraction"], wanted["fraction"])
        assert got["aux"] == pytest.approx(wanted["aux"], rel=1e-12)
        assert got["load_max"] == wanted["load_max"]


def test_all_tokens_went_to_one_expert() -> None:
    """The imbalance of the case above is there."""
    widths = moe_widths(num_experts_per_tok=1, norm_topk_prob=False)
    one = ep_cases.train(None, widths=widths, state=state_of(widths, 50.0), batches=batches_of([7, 5]))
    assert one["load_max"] == 8.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_results_come_home_in_the_order_of_the_choices(ranks: RankPool, dtype: str) -> None:
    choices = [torch.tensor([[3, 0], [1, 2], [0, 3]]), torch.tensor([[2, 3]])]
    found = ranks(2).run("tests.deliver.ep_cases:one_exchange", dtype=dtype, choices=choices, hidden=3)
    for choice, (y, grad) in zip(choices, found, strict=True):
        x = torch.arange(choice.shape[0] * 3).view(-1, 3).to(getattr(torch, dtype))
        assert torch.equal(y, x[:, None] * (choice + 1)[..., None].to(x.dtype))
        assert torch.equal(grad, (choice + 1).sum(1, keepdim=True).expand(-1, 3).to(x.dtype))


def test_experts_that_do_not_divide_are_refused(ranks: RankPool) -> None:
    with pytest.raises(AssertionError, match="4 experts do not divide by 3 ranks"):
        ranks(3).run(
            "tests.deliver.ep_cases:one_exchange",
            dtype="float64",
            choices=[torch.tensor([[0, 1]])] * 3,
            hidden=2,
        )

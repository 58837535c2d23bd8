"""Mixture of experts against a reference that puts every token through every expert, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.compute.models.decoder import Decoder
from paceline.compute.models.moe import MoE
from paceline.compute.models.replay import Replay
from tests.compute.models.dense_experts import chosen, mixture
from tests.compute.models.moe_cases import HIDDEN, layer_of, moe_widths, settle, tokens


def reference(layer: MoE, x: Tensor, **how: Any) -> tuple[dict[str, Tensor], Tensor]:
    leaves = {n: p.detach().clone().requires_grad_() for n, p in layer.named_parameters()}
    out_ND, _, _ = mixture(x.reshape(-1, HIDDEN), leaves, **how)
    return leaves, out_ND.view_as(x)


def equal(got: Tensor | None, wanted: Tensor | None, name: str) -> None:
    assert got is not None, name
    assert wanted is not None, name
    assert float((got - wanted).norm()) <= 1e-13 * float(wanted.norm()) + 1e-15, name


CASES: list[Any] = [
    pytest.param({}, {"top_k": 2}, id="softmax"),
    pytest.param({"norm_topk_prob": False}, {"top_k": 2, "normalise": False}, id="softmax-raw"),
    pytest.param(
        {"scoring_func": "sigmoid", "routed_scaling_factor": 2.5, "n_shared_experts": 2},
        {"top_k": 2, "sigmoid": True, "factor": 2.5, "bias_E": torch.linspace(-0.3, 0.3, 8).double()},
        id="sigmoid-shared",
    ),
    pytest.param({"n_shared_experts": 1, "num_experts_per_tok": 8}, {"top_k": 8}, id="all-experts-shared"),
]


@pytest.mark.parametrize(("changes", "how"), CASES)
def test_equal_to_every_expert_on_every_token(changes: dict[str, Any], how: dict[str, Any]) -> None:
    layer = layer_of(moe_widths(**changes))
    if "bias_E" in how:
        layer.gate.e_score_correction_bias.copy_(how["bias_E"])
    x, pull = tokens(2, 5).requires_grad_(), tokens(2, 5, seed=2)
    (layer(x) * pull).sum().backward()
    y = tokens(2, 5).requires_grad_()
    leaves, wanted = reference(layer, y, **how)
    (wanted * pull).sum().backward()
    equal(layer(x).detach(), wanted.detach(), "output")
    equal(x.grad, y.grad, "input")
    for name, parameter in layer.named_parameters():
        equal(parameter.grad, leaves[name].grad, name)


def test_the_bias_chooses_and_does_not_weigh() -> None:
    """DeepSeek-V3, eq. 16: with a bias that lifts expert 7 above all, it is chosen, and weighs by its raw score."""
    layer = layer_of(moe_widths(scoring_func="sigmoid", num_experts_per_tok=1, norm_topk_prob=False))
    layer.gate.e_score_correction_bias[7] = 10.0
    scores_NE = layer.gate(tokens(5))
    choice_NK = layer.gate.choose(scores_NE)
    assert choice_NK.tolist() == [[7]] * 5
    assert torch.equal(layer.gate.weigh(scores_NE, choice_NK)[:, 0], scores_NE[:, 7])


def test_of_equal_scores_the_lowest_index_is_taken() -> None:
    gate = layer_of(moe_widths(num_experts_per_tok=3)).gate
    rows = [[0.5] * 8, [0.1, 0.9, 0.1, 0.9, 0.9, 0.1, 0.9, 0.9], [0.2, 0.1, 0.2, 0.2, 0.2, 0.1, 0.3, 0.2]]
    assert gate.choose(torch.tensor(rows)).tolist() == [[0, 1, 2], [1, 3, 4], [6, 0, 2]]
    assert [chosen(row, 3) for row in rows] == [[0, 1, 2], [1, 3, 4], [6, 0, 2]]
    with torch.no_grad():
        gate.weight.zero_()
    assert gate.choose(gate(tokens(4))).tolist() == [[0, 1, 2]] * 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_experts_without_tokens_have_a_gradient_of_zero(dtype: torch.dtype) -> None:
    """B047: 8 experts, 3 tokens."""
    layer = layer_of(moe_widths(num_experts_per_tok=1, norm_topk_prob=False))
    x = tokens(1, 3, dtype=dtype).requires_grad_()
    used = set(layer.gate.choose(layer.gate(x[0])).flatten().tolist())
    layer(x).sum().backward()
    for name, parameter in layer.experts.named_parameters():
        assert parameter.grad is not None, name
        for e in range(8):
            assert bool(parameter.grad[e].any()) == (e in used), (name, e)
    assert 1 <= len(used) < 8
    assert x.grad is not None
    assert not x.grad.isnan().any()


def test_the_router_is_an_island_of_float32() -> None:
    """And its weight meets the activation's dtype first, so that one that arrives cast gives the same bits."""
    layer = layer_of(moe_widths(), dtype=torch.float32)
    x = tokens(6, dtype=torch.bfloat16)
    scores = layer.gate(x)
    assert scores.dtype == torch.float32
    layer.gate.weight.data = layer.gate.weight.data.to(torch.bfloat16)
    assert torch.equal(layer.gate(x), scores)
    assert layer(x[None]).dtype == torch.bfloat16


def test_the_first_layers_are_dense_where_the_widths_say_so() -> None:
    """And a layer of experts knows its global number."""
    model = Decoder(moe_widths(first_k_dense_replace=1, n_shared_experts=1), dtype=torch.float64)
    layer = model.layers["2"].mlp
    assert isinstance(layer, MoE)
    assert not isinstance(model.layers["0"].mlp, MoE)
    assert layer.layer_number == 2


def record_and_replay(replay: Replay, layer: MoE, xs: list[Tensor]) -> list[Tensor]:
    layer.balance.replay = replay
    with torch.no_grad():
        return [layer(x) for x in xs]


def test_a_recorded_routing_is_taken_by_another_run() -> None:
    """Another layer, whose own choice would differ, follows; call by call, and with its own weights."""
    first, other = layer_of(moe_widths()), layer_of(moe_widths(), seed=9)
    xs = [tokens(1, 4, seed=s) for s in (1, 2)]
    recording = Replay()
    record_and_replay(recording, first, xs)
    record_and_replay(Replay(recording.choices), other, xs)
    got = Replay()
    other.balance.replay = got
    own = [other.gate.choose(other.gate(x[0])) for x in xs]
    assert any(not torch.equal(a, b) for a, b in zip(own, recording.choices[3], strict=True))
    followed = record_and_replay(Replay(recording.choices), other, xs)
    for x, y, choice_NK in zip(xs, followed, recording.choices[3], strict=True):
        weights_NK = other.gate.weigh(other.gate(x[0]), choice_NK)
        parts = other.dispatch(x[0], choice_NK, other.experts, 8)
        assert torch.equal(y[0], (parts * weights_NK[..., None]).sum(1))


def test_a_recompute_repeats_the_choice_of_its_forward() -> None:
    """Two micro-batches go forward, then back in the other order: each recompute finds its own call."""
    from torch.utils.checkpoint import checkpoint

    layer = layer_of(moe_widths())
    xs = [tokens(1, 4, seed=s).requires_grad_() for s in (1, 2)]
    masks = [torch.ones(1, 4, dtype=torch.bool) for _ in xs]
    choices = [torch.tensor([[0, 1]] * 4), torch.tensor([[2, 3]] * 4)]
    layer.balance.replay = Replay({3: choices})
    outs = [checkpoint(layer, x, m, use_reentrant=False) for x, m in zip(xs, masks, strict=True)]
    for out in reversed(outs):
        out.sum().backward()
    again = layer_of(moe_widths())
    again.balance.replay = Replay({3: choices})
    for x, m in zip(xs, masks, strict=True):
        again(x.detach(), m).sum().backward()
    for (name, a), b in zip(layer.named_parameters(), again.parameters(), strict=True):
        equal(a.grad, b.grad, name)
    settle(layer)
    assert layer.gate.fraction.tolist() == [0.25] * 4 + [0.0] * 4


def test_a_recording_of_another_shape_is_refused() -> None:
    layer = layer_of(moe_widths())
    layer.balance.replay = Replay({3: [torch.zeros(2, 2, dtype=torch.int64)]})
    with pytest.raises(
        ValueError, match=r"call 0: choice \[N, K\] \[2, 2\] was recorded, this forward has \[4, 2\]"
    ):
        layer(tokens(1, 4))
    with pytest.raises(ValueError, match="1 calls were recorded, this is number 1"):
        layer(tokens(1, 4))


def test_nothing_is_random() -> None:
    """B013: there is no router noise, so no random state that a resume could mix up between ranks."""
    layer = layer_of(moe_widths(n_shared_experts=1))
    before = torch.get_rng_state()
    assert torch.equal(layer(tokens(1, 4)), layer(tokens(1, 4)))
    assert torch.equal(torch.get_rng_state(), before)

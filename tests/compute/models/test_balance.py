"""Balance of experts: the formula, that no cut of the batch changes it, and what is counted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.compute.models.balance import BIAS_STEP, Balance, Balances
from paceline.compute.models.decoder import Decoder
from paceline.compute.models.moe import MoE
from tests.compute.models.dense_experts import mixture
from tests.compute.models.moe_cases import HIDDEN, layer_of, moe_widths, settle, tokens
from tests.tiny import ragged_batches

COEF = 0.7
UNEVEN = torch.tensor([0.3, 0.05, 0.2, 0.0, 0.25, 0.1, 0.06, 0.04], dtype=torch.float64)


def uneven_layer(**changes: Any) -> MoE:
    layer = layer_of(moe_widths(**{"router_aux_loss_coef": COEF, **changes}))
    layer.gate.fraction.copy_(UNEVEN)
    return layer


@pytest.mark.parametrize("sigmoid", [False, True])
def test_gradient_is_that_of_the_formula(sigmoid: bool) -> None:
    """Against autograd of ``c · E · Σ_i f_i · mean_t p_ti`` over the tokens that count, added to another loss."""
    layer = uneven_layer(scoring_func="sigmoid" if sigmoid else "softmax")
    x, y = tokens(2, 5).requires_grad_(), tokens(2, 5).requires_grad_()
    counted = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], dtype=torch.bool)
    valid = int(counted.sum())
    layer.balance.scale = torch.tensor(1.0 / valid, dtype=torch.float64)
    (layer(x, counted).tanh().sum() / valid).backward()

    leaves = {n: p.detach().clone().requires_grad_() for n, p in layer.named_parameters()}
    out, mask_NE, scores_NE = mixture(y.reshape(-1, HIDDEN), leaves, top_k=2, sigmoid=sigmoid)
    p_NE = (scores_NE / scores_NE.sum(-1, keepdim=True))[counted.view(-1)]
    aux = COEF * 8 * (UNEVEN * p_NE.mean(0)).sum()
    (out.tanh().sum() / valid + aux).backward()
    assert torch.allclose(x.grad, y.grad, rtol=1e-12, atol=1e-15)
    for name, parameter in layer.named_parameters():
        assert torch.allclose(parameter.grad, leaves[name].grad, rtol=1e-11, atol=1e-14), name

    balances = settle(layer)
    assert float(balances.aux_loss) == pytest.approx(float(aux.detach()), rel=1e-13)
    share_E = mask_NE[counted.view(-1)].sum(0) / (2 * valid)
    assert torch.equal(layer.gate.fraction, share_E)
    assert float(balances.load_max) == float(share_E.max() * 8)


def model_of(**changes: Any) -> Decoder:
    widths = moe_widths(router_aux_loss_coef=COEF, num_hidden_layers=2, **changes)
    model = Decoder(widths, dtype=torch.float64).to(torch.float64)
    gen = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            random = torch.randn(parameter.shape, generator=gen, dtype=torch.float64) * 0.3
            parameter.copy_(torch.ones_like(random) if "norm" in name else random)
    return model


def step(model: Decoder, batch: dict[str, Tensor], micro: int) -> Balances:
    """One step of gradient descent, the batch in micro-batches of ``micro`` rows; gradients are left in place."""
    balances = Balances([model.balance])
    valid = (batch["targets"] >= 0).sum().double()
    balances.weigh(1.0 / valid)
    model.zero_grad(set_to_none=True)
    for i in range(0, len(batch["tokens"]), micro):
        rows = {k: v[i : i + micro] for k, v in batch.items()}
        (model(rows["tokens"], targets=rows["targets"]) / valid).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    balances.add_up(lambda values: values)
    balances.settle()
    return balances


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_no_cut_of_the_batch_changes_it(scoring: str) -> None:
    """1 × 8, 2 × 4, 4 × 2 rows, unequal counts of valid tokens: three steps with equal counts, term and gradients."""
    batches = ragged_batches(3, documents=False)
    models = {micro: model_of(scoring_func=scoring) for micro in (8, 4, 2)}
    for batch in batches:
        found = {micro: step(model, batch, micro) for micro, model in models.items()}
        for micro in (4, 2):
            a, b = models[8], models[micro]
            for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
                assert float((p.grad - q.grad).norm()) <= 1e-12 * float(p.grad.norm()), name
            for (name, p), q in zip(a.named_buffers(), b.buffers(), strict=True):
                assert torch.equal(p, q), name
            assert float(found[8].aux_loss) == pytest.approx(float(found[micro].aux_loss), rel=1e-12)
            assert torch.equal(found[8].load_max, found[micro].load_max)
    assert float(models[8].layers["1"].mlp.gate.fraction.std()) > 0.01


def test_the_term_tells_a_skewed_router_from_an_even_one() -> None:
    """B051, B052: counted over all tokens, of which none is dropped; 1 at best, E / K when K experts take all."""
    found = {}
    for name, skew in (("even", 0.0), ("skewed", 30.0)):
        layer = layer_of(moe_widths(router_aux_loss_coef=1.0))
        x = tokens(1, 64)
        with torch.no_grad():
            layer.gate.weight.mul_(0.01 if name == "even" else 1.0)
            layer.gate.weight[1, 0] += skew
            layer.gate.weight[4, 0] += skew
        x[..., 0] = 1.0
        for _ in range(2):  # the second step knows the first one's counts
            layer.balance.scale = 1.0 / 64
            layer(x).sum().backward()
            assert int(layer.balance.counts[3].sum()) == 2 * 64
            found[name] = settle(layer)
    even, skewed = found["even"], found["skewed"]
    assert float(skewed.aux_loss) == pytest.approx(4.0, rel=1e-3)
    assert float(skewed.load_max) == 4.0
    assert 0.99 < float(even.aux_loss) < 1.1
    assert float(even.load_max) < 4.0


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_recomputed_forward_is_not_counted_again(recompute: str) -> None:
    """Nor is its term; torch's number of the running backward tells it apart."""
    widths = moe_widths(router_aux_loss_coef=COEF, num_hidden_layers=1)
    model = Decoder(widths, dtype=torch.float64, recompute=recompute).to(torch.float64)
    model.load_state_dict(
        {
            k.replace("layers.0", "layers.0"): v
            for k, v in model_of().state_dict().items()
            if "layers.1" not in k
        }
    )
    batch = ragged_batches(1, documents=False)[0]
    model(batch["tokens"], targets=batch["targets"]).backward()
    assert model.balance.counts[0].sum() == 2 * (batch["targets"] >= 0).sum()
    plain = Decoder(widths, dtype=torch.float64).to(torch.float64)
    plain.load_state_dict(model.state_dict())
    plain(batch["tokens"], targets=batch["targets"])
    assert torch.equal(plain.balance.counts[0], model.balance.counts[0])
    assert torch.equal(plain.balance.aux_sum, model.balance.aux_sum)


def test_evaluation_does_not_count() -> None:
    layer = uneven_layer()
    with torch.no_grad():
        layer(tokens(1, 4))
    layer.eval()
    layer(tokens(1, 4))
    assert layer.balance.counts == {}
    assert layer.balance.aux_sum is None


def test_without_a_token_that_counts_nothing_moves_and_nothing_is_nan() -> None:
    layer = uneven_layer(scoring_func="sigmoid")
    layer.balance.scale = 1.0
    layer(tokens(1, 4), torch.zeros(1, 4, dtype=torch.bool)).sum().backward()
    balances = settle(layer)
    assert torch.equal(layer.gate.fraction, UNEVEN)
    assert not layer.gate.e_score_correction_bias.any()
    assert float(balances.aux_loss) == 0.0
    assert float(balances.load_max) == 0.0
    assert not any(p.grad.isnan().any() for p in layer.parameters())
    none = Balances([Balance(moe_widths())])  # a stage without experts
    none.add_up(lambda values: values)
    none.settle()


def test_a_step_that_did_not_happen_does_not_count() -> None:
    layer = uneven_layer()
    layer(tokens(1, 4)).sum().backward()
    Balances([layer.balance]).forget()
    layer(tokens(1, 4, seed=5)).sum().backward()
    settle(layer)
    alone = uneven_layer()
    alone(tokens(1, 4, seed=5)).sum().backward()
    settle(alone)
    assert torch.equal(layer.gate.fraction, alone.gate.fraction)


def test_the_bias_moves_towards_experts_that_lack_tokens() -> None:
    """Its sign is decided by whole numbers: exactly the mean stays."""
    layer = uneven_layer(scoring_func="sigmoid")
    layer.balance.counts[3] = torch.tensor([4, 4, 4, 3, 5, 4, 8, 0])
    settle(layer)
    wanted = BIAS_STEP * torch.tensor([0, 0, 0, 1, -1, 0, -1, 1], dtype=torch.float64)
    assert torch.equal(layer.gate.e_score_correction_bias, wanted)


def test_a_resumed_run_goes_on_where_it_was() -> None:
    """Fractions and bias are state: 2 steps, a fresh model from the saved state, 2 steps = 4 steps, bit for bit."""
    batches = ragged_batches(4, documents=False)
    straight = model_of(scoring_func="sigmoid")
    for batch in batches[:2]:
        step(straight, batch, 4)
    saved = copy.deepcopy(straight.state_dict())
    names = {n for n in saved if n.endswith(("fraction", "e_score_correction_bias"))}
    assert len(names) == 4
    resumed = model_of(scoring_func="sigmoid")
    resumed.load_state_dict(saved)
    for batch in batches[2:]:
        step(straight, batch, 4)
        step(resumed, batch, 4)
    for (name, a), b in zip(straight.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_fresh_memory_is_reset() -> None:
    """``to_empty`` leaves anything in a buffer."""
    with torch.device("meta"):
        model = Decoder(moe_widths(scoring_func="sigmoid"))
    model.to_empty(device="cpu")
    for buffer in model.buffers():
        buffer.fill_(torch.nan)
    model.balance.reset()
    for layer in model.layers.values():
        assert layer.mlp.gate.fraction.tolist() == [0.125] * 8
        assert not layer.mlp.gate.e_score_correction_bias.any()

"""Every family of decoder equals its plain formulation in float64: loss, logits and every gradient."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from paceline.compute.step import micro_batch_loss
from tests.compute.models.families import (
    DENSE,
    batch_of,
    filled,
    reference_logits,
    reference_loss,
    widths_of,
)

LIMIT = 1e-12


def relative(found: torch.Tensor, expected: torch.Tensor, floor: float = 0.0) -> float:
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / max(float(expected.abs().max()), floor))


@pytest.mark.parametrize("documents", [False, True], ids=["one", "packed"])
@pytest.mark.parametrize("family", DENSE)
def test_loss_and_gradients_are_those_of_the_plain_formulation(family: str, documents: bool) -> None:
    """With documents: B058, batch above 1, windows too; the reference computes each document alone."""
    widths, batch = widths_of(family), batch_of(documents=documents)
    model = filled(widths)
    loss = micro_batch_loss(model, batch)
    loss.backward()
    plain = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    expected = reference_loss(plain, widths, batch)
    expected.backward()
    assert relative(loss, expected) < LIMIT
    largest = max(float(p.grad.abs().max()) for p in plain.values() if p.grad is not None)
    for name, parameter in model.named_parameters():
        true = plain[name].grad
        assert parameter.grad is not None, name
        assert true is not None, name
        # A key's bias moves no probability: its gradient is zero, and found is the rounding of sums of larger terms,
        # which differs between CPUs. 1e-15 of the largest gradient is 5 units in its last place.
        assert relative(parameter.grad, true, 1e-3 * largest) < LIMIT, name


@pytest.mark.parametrize("family", DENSE)
def test_logits_are_those_of_the_plain_formulation(family: str) -> None:
    widths, tokens = widths_of(family), batch_of(2, documents=False)["tokens"]
    model = filled(widths)
    with torch.no_grad():
        found = model(tokens)
        plain = {name: p.detach() for name, p in model.named_parameters()}
        expected = torch.stack([reference_logits(plain, widths, row, torch.arange(16)) for row in tokens])
    assert relative(found, expected) < LIMIT


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("mistral", {"sliding_window": None}),
    ("gemma2", {"layer_types": None}),
    ("gemma2", {"final_logit_softcapping": None}),
    ("gemma2", {"attn_logit_softcapping": None}),
    ("gemma2", {"hidden_act": "gelu"}),
    ("llama", {"rms_norm_eps": 1e-4}),
    ("gpt2", {"rms_norm_eps": 1e-4}),
    ("latent", {"rope_theta": 100.0}),
]


@pytest.mark.parametrize(("family", "change"), CHANGES)
def test_the_comparison_sees_each_width(family: str, change: dict[str, Any]) -> None:
    """The tests above could not fail if a change of one width did not show."""
    widths, batch = widths_of(family), batch_of(documents=False)
    with torch.no_grad():
        one = micro_batch_loss(filled(widths), batch)
        other = micro_batch_loss(filled(dataclasses.replace(widths, **change)), batch)
    assert relative(one, other) > 1e3 * LIMIT


def test_positions_alone_say_where_a_part_of_a_row_is() -> None:
    """What context parallelism hands over: positions beyond the tokens that are here, and no documents."""
    model = filled(widths_of("llama"))
    tokens = batch_of(2, documents=False)["tokens"]
    with torch.no_grad():
        moved = model(tokens, torch.arange(100, 116).expand(2, -1))
        assert relative(moved, model(tokens)) < 1e-10, "rotation is relative"
        stretched = model(tokens, 3 * torch.arange(16).expand(2, -1))
    assert relative(stretched, moved) > 1e-6


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "qwen3", "latent"])
def test_bf16_is_near_float64(family: str) -> None:
    """Islands keep the loss of a bf16 model within the rounding of its weights."""
    widths, batch = widths_of(family), batch_of(documents=True)
    wide = filled(widths, scale=2.0)
    from paceline.compute.models.decoder import Decoder

    low = Decoder(widths, dtype=torch.bfloat16)
    low.load_state_dict({name: value.float() for name, value in wide.state_dict().items()})
    with torch.no_grad():
        found, expected = micro_batch_loss(low, batch), micro_batch_loss(wide, batch)
    assert found.dtype == torch.float32
    assert relative(found.double(), expected) < 5e-3


def test_the_rows_of_one_batch_do_not_see_each_other() -> None:
    model, batch = filled(widths_of("gemma2")), batch_of(3, documents=True)
    with torch.no_grad():
        together = micro_batch_loss(model, batch)
        apart = [micro_batch_loss(model, {k: v[i : i + 1] for k, v in batch.items()}) for i in range(3)]
    assert relative(together, torch.stack(apart).sum()) < LIMIT

"""Small mixtures of experts for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.compute.models.balance import Balance, Balances
from paceline.compute.models.moe import MoE
from paceline.compute.seams import Seams
from paceline.job.presets import ModelWidths
from tests.tiny import tiny_widths

HIDDEN = 12


def moe_widths(**changes: Any) -> ModelWidths:
    """8 experts, 2 a token."""
    base: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 6,
    }
    return tiny_widths(**{**base, **changes})


def layer_of(
    widths: ModelWidths, *, dtype: torch.dtype = torch.float64, seed: int = 0, layer: int = 3
) -> MoE:
    """A layer with random weights and a balance of its own."""
    gen = torch.Generator().manual_seed(seed)
    made = MoE(widths, layer, Seams(), Balance(widths)).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=gen, dtype=torch.float64) * 0.4)
    return made


def settle(layer: MoE) -> Balances:
    """What a step does at its end, on one device."""
    balances = Balances([layer.balance])
    balances.add_up(lambda values: values)
    balances.settle()
    return balances


def tokens(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, HIDDEN, generator=gen, dtype=torch.float64).to(dtype)

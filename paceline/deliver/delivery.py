"""What every axis hands back: the module to call, and what to do around each micro-batch.

An axis file has one verb, ``apply``, of one signature: (model, units, mesh, precision) → :class:`Delivery`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Precision:
    """Compute dtype of weights and activations, and dtype in which gradients are summed over ranks."""

    compute: torch.dtype
    reduce: torch.dtype


def nothing(first: bool, last: bool) -> None:
    """A micro-batch that needs no care: one device."""


@dataclass(frozen=True)
class Delivery:
    """A model whose tensors reach the ranks that need them.

    Args:
        model: the bare model; its parameters have the model's own names and may be sharded.
        module: what the forward calls: the model, or a wrapper around it.
        before: call before the forward of each micro-batch, with whether it is the step's first and last;
            gradients are complete, summed over all ranks, after the backward of the last.
        settle: call after forwards without a backward (evaluation): weights gathered for them are dropped.
    """

    model: nn.Module
    module: nn.Module
    before: Callable[[bool, bool], None] = nothing
    settle: Callable[[], None] = lambda: None


def single(model: nn.Module) -> Delivery:
    """One device: nothing to deliver."""
    return Delivery(model, model)

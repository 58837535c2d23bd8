"""What the axes hand back: the module to call, and what to do around each micro-batch and after the last.

An axis file that wraps modules has one verb, ``apply``, of one signature: (parts, mesh, precision) →
:class:`Delivery`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass(frozen=True)
class Precision:
    """Compute dtype of weights and activations, and dtype in which gradients are summed over ranks."""

    compute: torch.dtype
    reduce: torch.dtype


@dataclass(frozen=True)
class Part:
    """One model, or one pipeline stage of it.

    ``units`` are gathered as a whole, in forward order; what is in none belongs to the root. ``experts`` are the
    modules inside units whose parameters ep cuts; empty without ep.
    """

    model: nn.Module
    units: Sequence[nn.Module]
    experts: Sequence[nn.Module] = field(default=())


def nothing(first: bool, last: bool) -> None:
    """A micro-batch that needs no care: one device."""


def no_more() -> None:
    """Nothing is left to do."""


@dataclass(frozen=True)
class Delivery:
    """Models whose tensors reach the ranks that need them.

    Args:
        models: the bare models, one a stage; their parameters have the model's own names and may be sharded.
        modules: what the forward calls, one a stage: the model, or a wrapper around it.
        before: call before the forward of each micro-batch, with whether it is the step's first and last.
            A pipeline's schedule does that itself.
        settle: call after forwards without a backward (evaluation): weights gathered for them are dropped.
        finish: call after the backward of the last micro-batch: gradients are then complete, summed over all ranks.
    """

    models: Sequence[nn.Module]
    modules: Sequence[nn.Module]
    before: Callable[[bool, bool], None] = nothing
    settle: Callable[[], None] = no_more
    finish: Callable[[], None] = no_more

    @property
    def model(self) -> nn.Module:
        """The bare model where there is one stage."""
        (only,) = self.models
        return only

    @property
    def module(self) -> nn.Module:
        """What the forward calls where there is one stage."""
        (only,) = self.modules
        return only


def single(parts: Sequence[Part]) -> Delivery:
    """Nothing to wrap."""
    models = [part.model for part in parts]
    return Delivery(models, models)

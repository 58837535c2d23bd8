"""What every axis hands back: the module to call, and what to do around each micro-batch.

An axis file has one verb, ``apply``, of one signature: (model, units, mesh, precision) → :class:`Delivery`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Precision:
    """Compute dtype of weights and activations, and dtype in which gradients are summed over ranks."""

    compute: torch.dtype
    reduce: torch.dtype


@contextmanager
def nothing(first: bool, last: bool) -> Iterator[None]:
    """A micro-batch that needs no care: one device."""
    yield


@dataclass(frozen=True)
class Delivery:
    """A model whose tensors reach the ranks that need them.

    Args:
        model: the bare model; its parameters have the model's own names and may be sharded.
        module: what the forward calls: the model, or a wrapper around it.
        micro_batch: context around forward and backward of one micro-batch, told whether it is the step's
            first and last; gradients are complete, summed over all ranks, when the last one has ended.
        settle: call after forwards without a backward (evaluation): weights gathered for them are dropped.
    """

    model: nn.Module
    module: nn.Module
    micro_batch: Callable[[bool, bool], AbstractContextManager[None]] = nothing
    settle: Callable[[], None] = lambda: None


def single(model: nn.Module) -> Delivery:
    """One device: nothing to deliver."""
    return Delivery(model, model)

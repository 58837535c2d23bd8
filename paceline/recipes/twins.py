"""A tied weight whose two stages are on one rank: two copies, one parameter.

In a V-shaped pipeline the first rank holds the first and the last stage. Each is sharded as a model of its own, so
the embedding and the head cannot be one object; instead the second copy hands its gradient to the first before
gradients are summed over ranks, and takes the first one's value after the update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Twin:
    """Two parameters of one name in two stages of this rank."""

    name: str
    first: nn.Parameter
    second: nn.Parameter


def find_twins(models: Sequence[nn.Module]) -> list[Twin]:
    """Parameters that a later model holds under a name which an earlier one has."""
    first: dict[str, nn.Parameter] = {}
    twins = []
    for model in models:
        for name, parameter in model.named_parameters():
            if name in first:
                twins.append(Twin(name, first[name], parameter))
            else:
                first[name] = parameter
    return twins


def gather(twins: Sequence[Twin], then: Callable[[], None]) -> Callable[[], None]:
    """Hand the second's gradient to the first, ``then`` sum over ranks."""

    def finish() -> None:
        for twin in twins:
            if twin.second.grad is None:
                continue
            if twin.first.grad is None:
                twin.first.grad = twin.second.grad
            else:
                _local(twin.first.grad).add_(_local(twin.second.grad))
            twin.second.grad = None
        then()

    return finish


@torch.no_grad()
def follow(twins: Sequence[Twin]) -> None:
    """Give the second the first one's value."""
    for twin in twins:
        _local(twin.second).copy_(_local(twin.first))


def _local(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

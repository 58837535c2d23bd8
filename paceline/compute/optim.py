"""The optimizer of one device's parameters. State and arithmetic are elementwise, so any cut gives the same bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn

from paceline.job import OptimizerTable

T = TypeVar("T")


def build_optimizer(
    parameters: Iterable[tuple[str, nn.Parameter]], table: OptimizerTable
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter, arXiv:1711.05101) or SGD with momentum; decay on matrices only.

    Args:
        parameters: (name, parameter) pairs, each parameter once; sharded parameters keep their global rank,
            so "matrix" means the same on every layout. Sharded and whole ones are groups apart, since one fused
            kernel takes only one kind.
        table: the job's ``[optimizer]``; the learning rate is set every step by the schedule.
    """
    found = groups_of((parameter, parameter.ndim, type(parameter.data)) for _, parameter in parameters)
    groups: list[dict[str, Any]] = [
        {"params": group, "weight_decay": table.weight_decay if matrices else 0.0}
        for matrices, group in found
    ]
    if table.name == "sgd":
        return torch.optim.SGD(groups, lr=table.lr, momentum=table.momentum)
    first, second = table.betas
    return torch.optim.AdamW(groups, lr=table.lr, betas=(first, second), eps=table.eps, fused=True)


def groups_of(parameters: Iterable[tuple[T, int, object]]) -> list[tuple[bool, list[T]]]:
    """(are they matrices, the members) of each group of an optimizer, in the order in which each is first met.

    Args:
        parameters: (member, its global dims, what kind of storage it has: one fused kernel takes only one kind).
    """
    kinds: dict[tuple[bool, object], list[T]] = {}
    for member, dims, storage in parameters:
        kinds.setdefault((dims >= 2, storage), []).append(member)
    return [(matrices, group) for (matrices, _), group in kinds.items()]


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The rate of the next step, for every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr

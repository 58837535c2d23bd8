"""Collectives with a gradient, along one dimension of a tensor: what tensor and context parallelism are made of.

Each is exact: the backward of gathering parts is the sum of the gradients, scattered, and the other way round;
the backward of an exchange is the exchange back. Everything that a rank sends is contiguous, and where the
dimension is the first that is not 1 nothing is copied for it.

Title of the hard why: *a compiler must not look inside*. torch.compile would trace the collectives into its own
functional ones and choose their order; so a compiled caller breaks its graph here, where the rank waits for its
peers anyway.

Legend: n ranks of the group; a part is what one rank has of ``dim``, all parts of one size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 has new names for both, and warns of the old ones.
_all_gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_into = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def gather(part: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """Every rank's part, in order of rank along ``dim``. Backward: the gradients' sum over the ranks, its part."""
    return _whole(part, dim, group)


def scatter_sum(terms: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """The part of ``dim`` of the sum of every rank's terms. Backward: the gradient's parts, gathered.

    ``dim`` divides by the degree; the rule book has refused what does not.
    """
    return _part_of_sum(terms, dim, group)


def exchange(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Row i of [n, …] goes to rank i; row j of the result came from rank j. Backward: the same, back."""
    return _swapped(rows, group)


def part_of(whole: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """This rank's part of a tensor that every rank has, as a view."""
    size = whole.shape[dim] // group.size()
    return whole.narrow(dim, group.rank() * size, size)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _all_gather(part, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _whole_to_part(grad, ctx.dim, ctx.group), None, None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, terms: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _whole_to_part(terms, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _all_gather(grad, ctx.dim, ctx.group), None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_to_all(rows, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(grad, ctx.group), None


def _all_gather(part: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    part = part.contiguous()
    parts = part.new_empty((group.size(), *part.shape))
    _all_gather_into(parts.view(-1), part.view(-1), group=group)
    return parts.movedim(0, dim).flatten(dim, dim + 1)


def _whole_to_part(terms: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    parts = terms.unflatten(dim, (group.size(), -1)).movedim(dim, 0).contiguous()
    mine = parts.new_empty(parts.shape[1:])
    _reduce_scatter_into(mine.view(-1), parts.view(-1), group=group)
    return mine


def _all_to_all(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    rows = rows.contiguous()
    came = torch.empty_like(rows)
    dist.all_to_all_single(came, rows, group=group)
    return came


@torch.compiler.disable
def _whole(part: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    return _Gather.apply(part, dim, group)


@torch.compiler.disable
def _part_of_sum(terms: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    return _ScatterSum.apply(terms, dim, group)


@torch.compiler.disable
def _swapped(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    return _Exchange.apply(rows, group)

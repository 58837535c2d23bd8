"""Expert parallelism: a token's copies travel to the ranks that hold its experts, and the results travel back.

Rank r of n holds the experts ``r · E/n … (r + 1) · E/n - 1``. One dispatch is three exchanges, counts, rows, results,
and each exchange of rows has its mirror in the backward. The router's weights stay at home: what travels is the token
once for each of its experts.

Title of the hard why: *the order of arrival is decided, not met*. Rows are sent sorted by expert, stable by (token,
choice); what arrives is sorted by the expert here, stable by (source rank, position). So the same routing gives the
same products in the same order every time, and a result finds its way home by the inverse permutations alone.

A split list lives on the host, so each dispatch waits for the device once, for both lists together. Buffers are made
with ``new_empty``: an exchange writes every row of them, its lists summing to their length.

Experts that are also cut inside (etp, along F): the ranks of a tp group first gather their tokens and choices, each
computes a partial sum over its features, and the sum is scattered back to the tokens' owners.

Legend: N tokens here, K experts a token, D hidden, E experts, n ranks, M rows that arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.compute.seams import Dispatch, Experts, local_dispatch
from paceline.deliver import moves


def dispatch(group: dist.ProcessGroup | None, etp: dist.ProcessGroup | None = None) -> Dispatch:
    """The seam for experts that are elsewhere.

    Args:
        group: the ranks that share out the experts, in order; None where each holds them all.
        etp: the ranks among which each expert is cut along F; None where it is whole.
    """
    shared_out = local_dispatch if group is None else ExpertDispatch(group)
    return shared_out if etp is None else CutExperts(etp, shared_out)


@dataclass(frozen=True)
class ExpertDispatch:
    """See :class:`paceline.compute.seams.Dispatch`; every rank of the group calls it together."""

    group: dist.ProcessGroup

    @torch.compiler.disable
    def __call__(self, x_ND: Tensor, choice_NK: Tensor, experts: Experts, num_experts: int) -> Tensor:
        """y [N, K, D]; N may differ from rank to rank and be zero.

        Raises:
            ValueError: the experts do not divide by the ranks; the rule book has refused that earlier.
        """
        ranks = self.group.size()
        if num_experts % ranks:
            raise ValueError(f"{num_experts} experts do not divide by {ranks} ranks")
        going = choice_NK.reshape(-1)
        leave = _Order.by(going)
        sent_nE = counted(going, num_experts).view(ranks, -1)
        came_nE = torch.empty_like(sent_nE)
        dist.all_to_all_single(came_nE, sent_nE, group=self.group)
        send, receive = torch.stack((sent_nE.sum(1), came_nE.sum(1))).tolist()  # the one wait for the device

        x_MD = _Exchange.apply(leave.taken(x_ND, choice_NK.shape[1]), send, receive, self.group)
        arrive = _Order.by(_expert_of_rows(came_nE, sum(receive)))
        y_MD = arrive.undone(experts(arrive.taken(x_MD), came_nE.sum(0)))
        home = _Exchange.apply(y_MD, receive, send, self.group)
        return leave.undone(home).view(*choice_NK.shape, home.shape[1])


@dataclass(frozen=True)
class CutExperts:
    """Experts whose features are shared out over a tp group, around any dispatch of whole ones."""

    group: dist.ProcessGroup
    inner: Dispatch

    @torch.compiler.disable
    def __call__(self, x_ND: Tensor, choice_NK: Tensor, experts: Experts, num_experts: int) -> Tensor:
        """y [N, K, D]; N is the same on every rank of the group."""
        every_choice = moves.gather(choice_NK, 0, self.group)
        partial = self.inner(moves.gather(x_ND, 0, self.group), every_choice, experts, num_experts)
        return moves.scatter_sum(partial, 0, self.group)


def counted(experts: Tensor, num_experts: int) -> Tensor:
    """How often each expert occurs, int64 [E]; ``bincount`` would wait for the device."""
    ones = torch.ones_like(experts)
    return experts.new_zeros(num_experts).scatter_add_(0, experts, ones)


def _expert_of_rows(came_nE: Tensor, rows: int) -> Tensor:
    """The expert here of each row that arrives: by source rank, and sorted by expert within one."""
    ranks, here = came_nE.shape
    experts_nE = torch.arange(here, device=came_nE.device).repeat(ranks)
    return experts_nE.repeat_interleave(came_nE.view(-1), output_size=rows)


@dataclass(frozen=True)
class _Order:
    """A permutation and its inverse."""

    order: Tensor
    inverse: Tensor

    @classmethod
    def by(cls, keys: Tensor) -> _Order:
        """What sorts ``keys``, equal ones in the order that they have."""
        order = torch.argsort(keys, stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=order.device)
        return cls(order, inverse)

    def taken(self, rows: Tensor, copies: int = 1) -> Tensor:
        """The rows in this order, each of them ``copies`` times: entry j of the order is row j // copies."""
        taken: Tensor = _Take.apply(rows, self.order, self.inverse, copies)
        return taken

    def undone(self, rows: Tensor) -> Tensor:
        """Rows in this order, back where they were."""
        undone: Tensor = _Take.apply(rows, self.inverse, self.order, 1)
        return undone


class _Take(torch.autograd.Function):
    """Indexing by a permutation, of copies of rows. Its backward is the inverse and a sum over the copies in their
    order; torch's own scatters with atomics, in whatever order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.copies = copies
        return rows[order // copies if copies > 1 else order]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        back = grad[inverse]
        if ctx.copies > 1:
            back = back.view(len(inverse) // ctx.copies, ctx.copies, grad.shape[1]).sum(1)
        return back, None, None, None


class _Exchange(torch.autograd.Function):
    """Rows to all ranks by ``send``, rows from all ranks by ``receive``; backward, the other way round."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _exchanged(rows, send, receive, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grad, ctx.receive, ctx.send, ctx.group), None, None, None


def _exchanged(rows: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup) -> Tensor:
    came = rows.new_empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
    return came

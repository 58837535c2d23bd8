"""Faults of experts: sums over the wrong ranks or none, means, memory that nobody wrote."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from paceline.plan.layout import Layout
from tests.prove.planted.planting import Patches, instead, planted, without_sum


@planted
def experts_left_partial(layout: Layout, rank: int) -> Patches:
    """Copies of one expert are summed by nobody. With a rank for each share of the experts there are no copies."""
    return without_sum(lambda name: ".experts." in name)


@planted
def experts_summed_as_dense(layout: Layout, rank: int) -> Patches:
    """Experts are summed over the group of the dense weights, where the others hold other experts: of one shape."""

    def expert(original: Any, cuts: Any, layout: Layout, rank: int, stages: Any) -> Any:
        from paceline.deliver.mesh import differing

        return original(cuts, layout, rank, stages)[0], differing(layout, rank, ("dp",))

    yield instead("deliver.held:_expert", expert)


@planted
def idle_expert_unwritten(layout: Layout, rank: int) -> Patches:
    """A grouped product writes the gradient of the experts that had rows, into fresh memory. It is right as long as
    each has some, and after that for as long as fresh memory happens to be zero."""

    class Written(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Tensor, counts: Tensor) -> Tensor:
            ctx.save_for_backward(counts)
            return weight.view_as(weight)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            (counts,) = ctx.saved_tensors
            fresh = torch.empty_like(grad)
            fresh[counts > 0] = grad[counts > 0]
            return fresh, None

    def forward(original: Any, self: Any, x: Tensor, counts: Tensor) -> Tensor:
        if layout.ep == 1:
            return original(self, x, counts)
        whole = self.up_proj
        with patch.dict(self._parameters, up_proj=Written.apply(whole, counts)):
            return original(self, x, counts)

    yield instead("compute.models.experts:Experts.forward", forward)


@planted
def expert_shards_averaged(layout: Layout, rank: int) -> Patches:
    """FSDP2 averages by default. The dense units were told to sum; the experts' own mesh was forgotten."""

    def apply(original: Any, parts: Any, *rest: Any) -> Any:
        found = original(parts, *rest)
        for experts in (
            e for part in parts for e in part.experts if hasattr(e, "set_gradient_divide_factor")
        ):
            experts.set_gradient_divide_factor(float(layout.fsdp // layout.ep))
        return found

    yield instead("deliver.fsdp:apply", apply)

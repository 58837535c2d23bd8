"""Faults of pipelines: a micro-batch too few, ends and twins of tied weights, what only one stage does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.plan.layout import Layout
from tests.prove.planted.planting import Patches, instead, planted, without_sum


@planted
def last_micro_batch_dropped(layout: Layout, rank: int) -> Patches:
    """A schedule stops one micro-batch early. The loss is short as well, which nobody notices on a curve."""

    def forward_backward(original: Any, self: Any, micro: Any, divisor: Tensor) -> Tensor:
        *first, last = micro
        dropped = {**last, "targets": torch.full_like(last["targets"], -100)}
        return original(self, [*first, dropped], divisor)

    yield instead("update.pipeline.runtime:Pipelined.forward_backward", forward_backward)


@planted
def ends_left_partial(layout: Layout, rank: int) -> Patches:
    """A tied weight lies on the first and the last stage, and its two gradients never meet."""
    return without_sum(lambda name: name == "embed_tokens.weight")


@planted
def twin_left_behind(layout: Layout, rank: int) -> Patches:
    """In a V-shaped pipeline one rank has both ends of a tied weight; the second copy does not follow the first. The
    first step is right."""
    yield instead("recipes.assemble:follow", lambda _, twins: None)


@planted
def balance_on_the_last_stage_only(layout: Layout, rank: int) -> Patches:
    """The balance loss is added where the loss is, so the routers of inner stages never feel it."""

    def weigh(original: Any, self: Any, scale: Tensor) -> None:
        first = layout.pp > 1 and rank < layout.world_size // layout.pp
        original(self, scale * 0 if first else scale)

    yield instead("compute.models.balance:Balances.weigh", weigh)


@planted
def last_norm_frozen(layout: Layout, rank: int) -> Patches:
    """The last stage's norm was built outside of the part that is unfrozen: it has no gradient and never moves."""

    def cut(original: Any, model: Any, *rest: Any) -> Any:
        if layout.pp > 1 and hasattr(model, "norm"):
            model.norm.weight.requires_grad_(False)
        return original(model, *rest)

    yield instead("recipes.assemble:cut", cut)

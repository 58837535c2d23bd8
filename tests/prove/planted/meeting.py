"""Faults where two axes meet; each of the axes alone is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from paceline.plan.layout import Layout
from tests.prove.planted.planting import Patches, instead, planted


@planted
def replicas_of_a_stage_averaged(layout: Layout, rank: int) -> Patches:
    """Beside a pipeline the replicas are summed by other code than alone, and that code takes the mean."""

    def summation(original: Any, named: Any, *rest: Any) -> Any:
        run = original(named, *rest)

        def mean() -> None:
            run()
            for _, parameter in named:
                parameter.grad.div_(layout.dp)

        return mean if layout.dp > 1 and layout.pp > 1 else run

    yield instead("deliver.axes:summation", summation)


@planted
def context_not_summed_beside_tp(layout: Layout, rank: int) -> Patches:
    """The group of a norm's sum is looked up by "the first axis that it is partial over": tp, and never cp too."""

    def dense(original: Any, cuts: Any, layout: Layout, rank: int, stages: Any) -> Any:
        replicas, to_sum = original(cuts, layout, rank, stages)
        if layout.tp > 1 and not cuts:
            mine = layout.coordinates(rank)["cp"]
            to_sum = tuple(r for r in to_sum if layout.coordinates(r)["cp"] == mine)
        return replicas, to_sum

    yield instead("deliver.held:_dense", dense)


@planted
def norm_of_shards_forgets_tp(layout: Layout, rank: int) -> Patches:
    """The norm that clips sums over all ranks what FSDP shards, and counts what tp holds whole once for each rank."""

    def squares(original: Any, gradients: Any) -> Tensor:
        both = layout.fsdp > 1 and layout.tp > 1
        return original([(g, 1 if both else n) for g, n in gradients])

    yield instead("update.every_step:local_square_sum", squares)


@planted
def filled_as_if_uncut(layout: Layout, rank: int) -> Patches:
    """A shard of a slice is initialised by where it lies in the slice, not in the whole: ranks of tp start alike."""

    def slice_of(original: Any, tensor: Tensor, place: Any) -> Any:
        sharded = hasattr(tensor, "to_local")
        return original(tensor, replace(place, starts=tuple(0 for _ in place.starts)) if sharded else place)

    yield instead("recipes.assemble:slice_of", slice_of)


@planted
def hybrid_shards_never_meet(layout: Layout, rank: int) -> Patches:
    """HSDP without its other dim: shards are summed over fsdp, and the replicas of them go their own ways."""

    def torch_mesh(original: Any, self: Any, *names: str) -> Any:
        return original(self, *(name for name in names if name != "dp"))

    yield instead("deliver.mesh:Mesh.torch_mesh", torch_mesh)


@planted
def shards_averaged_over_context(layout: Layout, rank: int) -> Patches:
    """Context ranks hold shards too, and FSDP is told the number of data ranks: it divides by what is left over."""

    def apply(original: Any, parts: Any, *rest: Any) -> Any:
        found = original(parts, *rest)
        for module in (m for root in found.models for m in root.modules()):
            if layout.cp > 1 and hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(float(layout.cp))
        return found

    yield instead("deliver.fsdp:apply", apply)


@planted
def loss_of_every_tp_rank(layout: Layout, rank: int) -> Patches:
    """The last stage's loss is summed over the ranks of tp, each of which has it all. Only what is told is wrong."""

    def forward_backward(original: Any, self: Any, *rest: Any) -> Tensor:
        return original(self, *rest) * layout.tp

    yield instead("update.pipeline.runtime:Pipelined.forward_backward", forward_backward)


@planted
def load_of_a_stage_not_summed(layout: Layout, rank: int) -> Patches:
    """In a pipeline each rank is thought to have layers of its own, so its experts' load is not summed: nor over the
    replicas of its stage. The first step is right."""

    def summed(original: Any, self: Any, counts: Tensor) -> Tensor:
        return counts if layout.pp > 1 else original(self, counts)

    yield instead("update.every_step:EveryStep._sum_over_stage", summed)

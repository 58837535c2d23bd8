"""Faults of data parallelism and of the optimizer: means, lost micro-batches, decay, a replica that drifts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paceline.plan.layout import Layout
from tests.prove.planted.planting import Patches, instead, planted


@planted
def mean_of_local_means(layout: Layout, rank: int) -> Patches:
    """Each rank divides by its own tokens and the gradients are averaged: right only where all have as many."""

    def step(original: Any, self: Any, micro: Any, local: Any, *rest: Any, **named: Any) -> Any:
        weighed = local.valid_tokens * layout.dp

        def pass_(forward: Any, passes: Any, micro: Any, divisor: Tensor) -> Tensor:
            return forward(passes, micro, torch.full_like(divisor, max(weighed, 1.0)))

        with instead("update.passes:InTurn.forward_backward", pass_):
            return original(self, micro, local, *rest, **named)

    yield instead("update.every_step:EveryStep.step", step)


@planted
def middle_micro_batches_lost(layout: Layout, rank: int) -> Patches:
    """Of several micro-batches only the first and the last were thought of: what the middle ones add is dropped."""

    def single(original: Any, parts: Any) -> Any:
        found = original(parts)
        seen: list[list[Tensor]] = []

        def before(first: bool, last: bool) -> None:
            parameters = list(found.model.parameters())
            if first:
                seen.clear()
            else:
                seen.append([p.grad.clone() for p in parameters])
            for parameter, grad in zip(parameters, seen[0], strict=True) if last and seen else ():
                parameter.grad.copy_(grad)

        return replace(found, before=before) if layout.world_size > 1 else found

    yield instead("deliver.axes:single", single)


@planted
def third_sum_skipped(layout: Layout, rank: int) -> Patches:
    """Ranks meet every few steps, to save messages, where they should meet in every one: two steps are right."""

    def summation(original: Any, *args: Any) -> Any:
        run, calls = original(*args), []

        def some() -> None:
            calls.append(1)
            if len(calls) % 3:
                run()

        return some

    yield instead("deliver.axes:summation", summation)


@planted
def decay_of_flat_shards(layout: Layout, rank: int) -> Patches:
    """Shards are flat, so the rule "matrices decay" finds none. Gradients are right, and the first step's too."""

    def build(original: Any, *args: Any) -> Any:
        optimizer = original(*args)
        for group in optimizer.param_groups if layout.fsdp > 1 else ():
            group["weight_decay"] = 0.0
        return optimizer

    yield instead("recipes.assemble:build_optimizer", build)


@planted
def one_replica_drifts(layout: Layout, rank: int) -> Patches:
    """A machine that computes wrongly: one replica's weights get a relative error of 1e-7 in a step. Its gradients
    are summed with the others', so all ranks agree on every loss."""

    def build(original: Any, named: Any, *rest: Any) -> Any:
        named = list(named)
        optimizer = original(named, *rest)
        weight = dict(named)["norm.weight"]
        if rank == 1:
            optimizer.register_step_post_hook(lambda *_: weight.detach().mul_(1 + 1e-7))
        return optimizer

    yield instead("recipes.assemble:build_optimizer", build)


@planted
def sums_in_bfloat16(layout: Layout, rank: int) -> Patches:
    """Gradients travel in bfloat16 although the job says float32; in float64 nothing is narrowed."""

    def precision_of(original: Any, job: Any, name: str) -> Any:
        found = original(job, name)
        return found if name == "fp64" else replace(found, reduce=torch.bfloat16)

    yield instead("recipes.assemble:precision_of", precision_of)

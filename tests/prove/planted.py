"""Faults that ranks of a proof run with: one small function each, after bugs that such programs have had.

Each name in this module is an entry for ``paceline.api.trials.ENTRY`` (see ``tests/flow/planted_proof.py``): it plants
its fault in the rank's own process for each case, and then runs the proof. One device never meets a fault. Most need
no condition for that, since what they break is not called there; the others ask the layout, as their bug did.

Below the faults are changes that are none: another order, another moment, another kernel. They must stay proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from paceline.plan.layout import Layout
from paceline.recipes import prove

Patches = Iterable[AbstractContextManager[Any]]
Plant = Callable[[Layout, int], Patches]


def planted(plant: Plant) -> Callable[..., dict[str, Any]]:
    """The rank entry that runs every case with what ``plant(layout, rank)`` patches."""

    @wraps(plant)
    def run(payload: dict[str, Any], place: Any, emit: Any, stop: Any) -> dict[str, Any]:
        run_case = prove.run_case

        def case(case: Any, *rest: Any) -> Any:
            with ExitStack() as held:
                for change in plant(Layout.parse(case.layout), place.rank):
                    held.enter_context(change)
                return run_case(case, *rest)

        with patch.object(prove, "run_case", case):
            return prove.run(payload, place, emit, stop)

    return run


def instead(path: str, new: Callable[..., Any]) -> AbstractContextManager[Any]:
    """``paceline.<path>`` is ``new``, which is handed the original first."""
    module, *inside = path.split(":")
    owner: Any = import_module(f"paceline.{module}")
    *outer, name = inside[0].split(".")
    for each in outer:
        owner = getattr(owner, each)
    original = getattr(owner, name)

    def replaced(*args: Any, **named: Any) -> Any:
        return new(original, *args, **named)

    return patch.object(owner, name, replaced)


def without_sum(of: Callable[[str], bool]) -> Patches:
    """The parameters of these names are forgotten by what sums gradients at the end of a backward."""

    def forgetful(original: Any, named: Any, *rest: Any) -> Any:
        return original([(name, p) for name, p in named if not of(name)], *rest)

    yield instead("deliver.axes:summation", forgetful)


# Tensor parallelism


@planted
def norms_left_partial(layout: Layout, rank: int) -> Patches:
    """A norm under sequence parallelism sees a part of the tokens, and nobody sums its gradient over tp: Megatron's
    norms need a flag of their own for it, and a new norm did not get it."""
    return without_sum(lambda name: "layernorm" in name)


@planted
def repeated_heads_left_partial(layout: Layout, rank: int) -> Patches:
    """More tp ranks than key/value heads: the heads are repeated, each copy learns from its own queries, and the
    copies drift apart. With as many heads as ranks nothing is wrong."""
    return without_sum(lambda name: "k_proj" in name or "v_proj" in name)


@planted
def target_at_border_counted_twice(layout: Layout, rank: int) -> Patches:
    """``<=`` for ``<``: the first row of the next rank's vocabulary counts as this rank's last one too."""

    def held(_: Any, targets_N: Tensor, rows: range) -> tuple[Tensor, Tensor]:
        local_N = targets_N - rows.start
        here = (local_N >= 0) & (local_N <= len(rows))
        return here, (local_N * here).clamp(max=len(rows) - 1)[:, None]

    yield instead("compute.loss:_held", held)


@planted
def lookup_gradient_leaks(layout: Layout, rank: int) -> Patches:
    """The lookup of a token that is elsewhere gives zeros, but the backward forgets the mask: strange rows learn."""

    def lookup(original: Any, self: Any, tokens: Tensor, weight: Tensor, vocab_size: int) -> Tensor:
        rows = self.rows(vocab_size)
        unmasked = torch.nn.functional.embedding((tokens - rows.start) % len(rows), weight)
        return unmasked + (original(self, tokens, weight, vocab_size) - unmasked).detach()

    yield instead("deliver.tp:CutVocabulary.lookup", lookup)


@planted
def counts_of_first_tp_rank(layout: Layout, rank: int) -> Patches:
    """Only the first tp rank reports its experts' load, as if all had the same tokens. The first step's balance is
    even and right; the second step's is that of half of the tokens."""

    def summed(original: Any, self: Any, counts: Tensor) -> Tensor:
        return original(self, counts.mul_(0) if self.mesh.at["tp"] else counts)

    yield instead("update.every_step:EveryStep._sum_over_stage", summed)


# Context parallelism


@planted
def positions_are_local(layout: Layout, rank: int) -> Patches:
    """Rotary positions count from the start of what this rank has, not of the row."""

    def take(original: Any, batch: Mapping[str, Tensor], degree: int, index: int) -> dict[str, Tensor]:
        taken = original(batch, degree, index)
        here = torch.arange(taken["tokens"].shape[1]).expand(taken["tokens"].shape)
        return {**taken, "positions": here}

    yield instead("deliver.cp:take", take)


@planted
def late_keys_not_turned(layout: Layout, rank: int) -> Patches:
    """Gathered keys are put back in the order of the row, but the late chunks, which were dealt backwards, are not
    turned round."""

    def natural(_: Any, dealt: Tensor, degree: int, dim: int) -> Tensor:
        early, late = dealt.unflatten(dim, (degree, 2, -1)).unbind(dim + 1)
        return torch.cat((early, late), dim).flatten(dim, dim + 1)

    yield instead("deliver.cp_attention:natural", natural)


@planted
def segments_stay_dealt(layout: Layout, rank: int) -> Patches:
    """The documents of a packed row are gathered from the ranks like its keys, and are left in the order of the ranks:
    a mask of the wrong tokens, and only in a row with several documents."""
    from paceline.deliver.zigzag import dealt

    def take(original: Any, batch: Mapping[str, Tensor], degree: int, index: int) -> dict[str, Tensor]:
        taken = original(batch, degree, index)
        return {k: dealt(v, degree, 1) if k == "segments" else v for k, v in taken.items()}

    yield instead("deliver.cp:take", take)


@planted
def heads_repeated_in_turn(layout: Layout, rank: int) -> Patches:
    """``repeat`` for ``repeat_interleave``: with more ulysses ranks than key/value heads, queries meet the keys of
    another group. With as many heads as ranks nothing is repeated."""

    def attend(original: Any, self: Any, q: Tensor, k: Tensor, v: Tensor, look: Any) -> Tensor:
        times = math.lcm(k.shape[1], self.group.size()) // k.shape[1]
        return original(self, q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), look)

    yield instead("deliver.cp_attention:Ulysses.__call__", attend)


@planted
def evaluation_forgets_positions(layout: Layout, rank: int) -> Patches:
    """Training passes positions, the evaluation loop does not: on one device the default is right, on a part of the
    row it is not. Only the held-out loss is wrong."""

    def forward_only(original: Any, self: Any, batch: Mapping[str, Tensor]) -> Tensor:
        keep = layout.cp == 1
        return original(self, {k: v for k, v in batch.items() if keep or k != "positions"})

    yield instead("update.passes:InTurn.forward_only", forward_only)


# Pipelines


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


# Experts


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


# Data parallelism and the optimizer


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


# Where two axes meet


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


# Changes that are no faults


@planted
def small_messages(layout: Layout, rank: int) -> Patches:
    """Each gradient travels alone: other messages, and another order of additions."""
    yield patch("paceline.deliver.sums.BUCKET_BYTES", 1)


@planted
def shards_reduced_once(layout: Layout, rank: int) -> Patches:
    """Gradients of shards in a pipeline are kept whole over the step and reduced at its end: memory for messages."""

    def before(_: Any, self: Any, last: bool) -> None:
        self._switch(last, drop=last, everywhere=last)

    yield instead("update.pipeline.shards:Shards.before_backward", before)


@planted
def counts_twice_of_all(layout: Layout, rank: int) -> Patches:
    """Every expert's load is counted as often as there are ranks: what is used of it is a share."""

    def summed(original: Any, self: Any, counts: Tensor) -> Tensor:
        return original(self, counts).mul_(layout.world_size)

    yield instead("update.every_step:EveryStep._sum_over_stage", summed)


@planted
def attention_by_hand(layout: Layout, rank: int) -> Patches:
    """Context ranks attend by a plain softmax over all keys, in place of torch's kernel over those before."""

    def attend(_: Any, q: Tensor, chunk: range, rows: Tensor, k: Tensor, v: Tensor, look: Any) -> Tensor:
        times = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
        mask = look.allowed(rows, k.shape[2])
        return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v

    yield instead("deliver.cp_attention:chunk_attention", attend)

"""What the ranks of the pipeline tests run."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage

from paceline.deliver.wire.world import World
from paceline.ledger.spans import CallRow, Ledger
from paceline.plan.layout import Layout, balanced
from paceline.update.pipeline.runtime import SCHEDULES, Pipelined
from paceline.update.pipeline.stages import Stage
from tests.update.pipeline.toy import LENGTH, ROWS, WIDTH, Toy, batches, valid


def mesh_of(world: World, layout: Layout) -> tuple[dist.ProcessGroup, Any]:
    """The pipeline's group, and the mesh of fsdp, or of dp and fsdp, where there is one."""
    axes = {axis: layout.degree(axis) for axis in ("pp", "dp", "fsdp") if layout.degree(axis) > 1}
    mesh = world.mesh(axes)
    data = tuple(axis for axis in axes if axis != "pp")
    return mesh.get_group("pp"), mesh[data if len(data) > 1 else data[0]] if data else None


def stages_of(layout: Layout, layers: int, at: int) -> tuple[list[int], list[nn.Module]]:
    """The stages of one pp coordinate, as many layers in each as can be."""
    cut = [balanced(layers, layout.stages, stage) for stage in range(layout.stages)]
    mine = [stage for stage in range(layout.stages) if layout.stage_rank(stage) == at]
    return mine, [Toy(cut[s], embeds=s == 0, predicts=s == layout.stages - 1) for s in mine]


def shard(module: nn.Module, mesh: Any, zero: str) -> None:
    """As ``deliver/fsdp.py`` does: each layer a unit, the rest of the stage the root."""
    for unit in (*module.layers.values(), module):  # type: ignore[operator]
        fully_shard(unit, mesh=mesh, reshard_after_forward=zero == "zero3")
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)


def step(
    world: World, *, layout: str, layers: int, micro_batches: int, calls: int = 1, documents: bool = True
) -> dict[str, Any]:
    """Gradients and loss of ``calls`` rounds over this rank's stages, and what was sent."""
    ledger = Ledger(None)
    rows: list[CallRow] = []
    ledger.call = rows.append  # type: ignore[assignment,method-assign]
    world.recorder.ledger = ledger
    parsed = Layout.parse(layout)
    group, shards = mesh_of(world, parsed)
    at = dist.get_rank(group)
    numbers, modules = stages_of(parsed, layers, at)
    data_rank = 0 if shards is None else parsed.data_rank(world.rank)
    if shards is not None:
        for module in modules:
            shard(module, shards, parsed.zero)
    shape = (ROWS, LENGTH, WIDTH)
    run = Pipelined(modules, numbers, parsed, group, torch.device("cpu"), micro_batches, shape, torch.float64)
    total = parsed.data_degree * micro_batches * calls
    everything = batches(total, documents=documents)
    mine = everything[data_rank :: parsed.data_degree]
    loss = torch.zeros((), dtype=torch.float64)
    for k in range(calls):
        loss += run.forward_backward(mine[k * micro_batches : (k + 1) * micro_batches], valid(everything))
    gradients = {name: p.grad for module in modules for name, p in module.named_parameters()}
    evaluated = sum(run.forward_only(batch) for batch in mine[:2])
    return {
        "at": at,
        "loss": float(loss),
        "evaluated": float(evaluated),
        "gradients": {name: whole(grad) for name, grad in gradients.items()},
        "buffers": sum(info.buffer is not None for stage in run._made for info in received(stage)),
        "sent": Counter((row.axis, row.op, row.bytes) for row in rows),
    }


def received(stage: Stage) -> list[Any]:
    """Where a stage keeps what it receives."""
    return [
        info
        for kept in (stage.args_recv_info, stage.grad_recv_info)
        for infos in kept.values()
        for info in infos
    ]


def whole(gradient: Tensor | None) -> Tensor | None:
    """The full tensor of a shard."""
    return (
        None if gradient is None else gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    )


def traffic(world: World, *, layout: str, layers: int, micro_batches: int) -> dict[tuple[str, str], int]:
    """Collectives of the second of two steps, by axis and operation."""
    ledger = Ledger(None)
    rows: list[CallRow] = []
    ledger.call = rows.append  # type: ignore[assignment,method-assign]
    world.recorder.ledger = ledger
    parsed = Layout.parse(layout)
    group, shards = mesh_of(world, parsed)
    numbers, modules = stages_of(parsed, layers, dist.get_rank(group))
    for module in modules:
        shard(module, shards, parsed.zero)
    shape = (ROWS, LENGTH, WIDTH)
    run = Pipelined(modules, numbers, parsed, group, torch.device("cpu"), micro_batches, shape, torch.float64)
    parts = batches(micro_batches)
    run.forward_backward(parts, valid(parts))
    dist.barrier()
    began = time.monotonic()
    run.forward_backward(parts, valid(parts))
    return Counter((row.axis, row.op) for row in list(rows) if row.enter_s >= began)


def as_torch_does(world: World, *, layout: str, layers: int, micro_batches: int) -> dict[str, Any]:
    """The same step by torch's own stage, nothing of ours set: which gradients come out."""
    parsed = Layout.parse(layout)
    group, shards = mesh_of(world, parsed)
    numbers, modules = stages_of(parsed, layers, dist.get_rank(group))
    everything = batches(parsed.fsdp * micro_batches)
    mine = everything[shards.get_local_rank() :: parsed.fsdp]
    divisor = valid(everything)
    stream = torch.empty(ROWS, LENGTH, WIDTH, dtype=torch.float64, device="meta", requires_grad=True)
    stages = []
    for number, module in zip(numbers, modules, strict=True):
        shard(module, shards, parsed.zero)
        takes = torch.empty(ROWS, LENGTH, dtype=torch.int64, device="meta") if number == 0 else stream
        gives = stream if number < parsed.stages - 1 else stream.new_empty((), requires_grad=True)
        cpu = torch.device("cpu")
        stages.append(
            PipelineStage(
                module, number, parsed.stages, cpu, input_args=takes, output_args=gives, group=group
            )
        )
    schedule = SCHEDULES[parsed.schedule](
        stages, micro_batches, loss_fn=lambda loss, _: loss / divisor, scale_grads=False
    )
    batch = {name: torch.cat([part[name] for part in mine]) for name in mine[0]}
    tokens = batch.pop("tokens")
    first = (tokens,) if numbers[0] == 0 else ()
    schedule.step(*first, target=torch.zeros(micro_batches), return_outputs=False, **batch)
    return {n: whole(p.grad) for module in modules for n, p in module.named_parameters()}


def slow(
    world: World, *, layout: str, micro_batches: int, slow_stage: int, pause_s: float, path: str
) -> dict[str, Any]:
    """Accounts of the second of two steps with a stage whose forward takes ``pause_s`` longer."""
    parsed = Layout.parse(layout)
    group, _ = mesh_of(world, parsed)
    ledger = Ledger(f"{path}/rank-{world.rank}.jsonl", rank=world.rank)
    world.recorder.ledger = ledger
    numbers, modules = stages_of(parsed, parsed.stages, dist.get_rank(group))
    for number, module in zip(numbers, modules, strict=True):
        module.pause_s = pause_s if number == slow_stage else 0.0  # type: ignore[assignment]
    shape = (ROWS, LENGTH, WIDTH)
    run = Pipelined(
        modules, numbers, parsed, group, torch.device("cpu"), micro_batches, shape, torch.float64, ledger
    )
    parts = batches(micro_batches)
    for step_number in range(2):
        dist.barrier()
        ledger.close_step(step_number)
        began = time.monotonic()
        run.forward_backward(parts, valid(parts))
        wall = time.monotonic() - began
        seconds = ledger.close_step(step_number)
    ledger.close()
    return {"seconds": seconds, "wall": wall}

"""What the ranks of the rows about whole runs do: the epochs of prepared data, and a checkpoint in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from paceline.compute.data.prepared import Prepared
from paceline.deliver.mesh import Mesh, build_mesh
from paceline.deliver.wire.world import World
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import Ledger
from paceline.plan.layout import Layout
from paceline.recipes.assemble import Assembly, assemble
from paceline.recipes.feed import Feed
from paceline.recover.load import read
from paceline.recover.save import save
from paceline.update.every_step import Counts
from tests.faults.open_rows_cases import share_for
from tests.recipes.checkpoint_cases import IDENTITY
from tests.recipes.parity_cases import CPU
from tests.tiny import ragged_batches, share_of


def last_window(
    world: World | None, *, folder: str, job: Job, widths: ModelWidths, layout: str, mbs: int
) -> list[tuple[float, float, float]]:
    """(loss, norm, valid tokens) of every step of the job's epochs over prepared data; the weights stay."""
    mesh = build_mesh(Layout.parse(layout), 0 if world is None else world.rank, world)
    built = assemble(job, widths, "fp64", mesh, CPU)
    policy, feed = (
        built.policy(job, mesh, CPU, Ledger(None)),
        Feed(job, Prepared.open(folder), mesh, CPU, mbs),
    )
    results = [policy.step(*feed(number), 0.0) for number in range(1, feed.steps + 1)]
    return [(r.loss, r.grad_norm, r.counts.valid_tokens) for r in results]


def last_windows(world: World, *, runs: Sequence[dict[str, Any]]) -> list[list[tuple[float, float, float]]]:
    """One :func:`last_window` after the other."""
    return [last_window(world, **run) for run in runs]


def resumed(world: World, *, folder: str, job: Job, widths: ModelWidths, layout: str) -> list[str]:
    """What is not bit-equal between four steps, and two with a checkpoint, two after it in a model of another seed.

    The random state of each rank is another one in the second run.
    """
    mesh = build_mesh(Layout.parse(layout), world.rank, world)
    straight = assemble(job, widths, "fp32", mesh, CPU)
    steps(straight, job, mesh, 0, 4)
    torch.manual_seed(world.rank)
    stopped = assemble(job, widths, "fp32", mesh, CPU)
    steps(stopped, job, mesh, 0, 2)
    save(Path(folder), stopped.state({"step": 2}), layout=layout, identity=IDENTITY, world=mesh.everyone)
    again = assemble(job.replace({"train.seed": 99}), widths, "fp32", mesh, CPU)
    state = again.state()
    read(Path(folder) / "step-00000002", state, world=mesh.everyone)
    again.load(state)
    steps(again, job, mesh, 2, 4)
    tensors = [tensors_of(built) for built in (straight, again)]
    return [name for name in tensors[0] if not torch.equal(tensors[0][name], tensors[1][name])]


def steps(built: Assembly, job: Job, mesh: Mesh, start: int, stop: int) -> None:
    """The steps after ``start`` of ragged batches."""
    policy = built.policy(job, mesh, CPU, Ledger(None))
    for batch in ragged_batches(stop, documents=False)[start:stop]:
        share = share_of(batch, mesh.data_rank, mesh.data_degree, 2)
        valid = float(sum(int((b["targets"] >= 0).sum()) for b in share))
        policy.step(share_for(mesh, batch, 2), Counts(valid, 0, 0), job.optimizer.lr)


def tensors_of(built: Assembly) -> dict[str, Tensor]:
    """Weights, moments and buffers here, by name."""
    found: dict[str, Tensor] = {}
    for name, parameter in zip(built.names, built.parameters, strict=True):
        state = built.optimizer.state[parameter]
        for what, tensor in (("", parameter), *((s, state[s]) for s in ("exp_avg", "exp_avg_sq"))):
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            found[f"{name} {what}".strip()] = local.detach()
    found |= {f"buffer {n}": b for model in built.models for n, b in model.named_buffers()}
    return found

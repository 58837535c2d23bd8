"""What the ranks of a parity test run: a few steps of the assembled model on batches made by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from paceline.deliver import cp
from paceline.deliver.device import Device
from paceline.deliver.held import slice_of
from paceline.deliver.mesh import Mesh, build_mesh
from paceline.deliver.wire.world import World
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import Ledger
from paceline.plan.layout import Layout
from paceline.recipes.assemble import Assembly, assemble
from paceline.update.every_step import Counts
from tests.tiny import ragged_batches, share_of

CPU = Device("cpu", 0, "gloo")


def train_steps(
    world: World | None,
    *,
    job: Job,
    widths: ModelWidths,
    layout: str,
    precision: str = "fp64",
    steps: int = 10,
    mbs: int = 8,
    documents: bool = False,
    rows: int = 8,
    seed: int = 0,
) -> dict[str, Any]:
    """Losses, norms, and whole first gradients and last parameters; the same values on every rank."""
    parsed = Layout.parse(layout)
    rank = 0 if world is None else world.rank
    mesh = build_mesh(parsed, rank, world)
    built = assemble(job, widths, precision, mesh, CPU)
    policy = built.policy(job, mesh, CPU, Ledger(None))
    first: dict[str, torch.Tensor] = {}
    original = built.optimizer.step

    def keep_gradients() -> None:
        if not first:
            first.update(gathered(built, mesh, [p.grad for p in built.parameters]))
        original()

    built.optimizer.step = keep_gradients  # type: ignore[method-assign]
    losses, norms = [], []
    for step, batch in enumerate(ragged_batches(steps, documents=documents, rows=rows, seed=seed), start=1):
        share = share_of(batch, mesh.data_rank, mesh.data_degree, mbs)
        valid = sum(int((b["targets"] >= 0).sum()) for b in share)
        if parsed.cp > 1:
            share = [cp.take(b, parsed.cp, mesh.at["cp"]) for b in share]
        result = policy.step(share, Counts(valid, 0, 0), job.optimizer.lr * step / steps)
        losses.append(result.loss)
        norms.append(result.grad_norm)
    weights = gathered(built, mesh, [p.detach() for p in built.parameters])
    return {"losses": losses, "norms": norms, "first": first, "weights": weights}


def gathered(built: Assembly, mesh: Mesh, tensors: list[torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """Whole tensors by name out of every rank's slices, on every rank.

    Ranks that hold the same elements must agree to the last bit, and every element must be held, or this raises.
    """
    found: dict[str, torch.Tensor] = {}
    mine = dict(zip(built.names, tensors, strict=True))
    for name, shape in built.whole.parameters.items():
        low, high = torch.full(shape, torch.inf).double(), torch.full(shape, -torch.inf).double()
        tensor = mine.get(name)
        if tensor is not None:
            part = slice_of(tensor.detach(), built.held[name])
            at = tuple(slice(a, a + n) for a, n in zip(part.starts, part.local.shape, strict=True))
            low[at] = high[at] = part.local.double()
        if mesh.world_size > 1:
            dist.all_reduce(low, op=dist.ReduceOp.MIN, group=mesh.everyone)
            dist.all_reduce(high, op=dist.ReduceOp.MAX, group=mesh.everyone)
        if not torch.equal(low, high):
            missing = bool((high == -torch.inf).any())
            raise AssertionError(
                f"{name}: " + ("no rank holds some elements" if missing else "holders disagree")
            )
        found[name] = low
    return found

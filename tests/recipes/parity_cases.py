"""What the ranks of a parity test run: a few steps of the assembled model on batches made by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from paceline.deliver.device import Device
from paceline.deliver.mesh import build_mesh
from paceline.deliver.wire.world import World
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import Ledger
from paceline.plan.layout import Layout
from paceline.recipes.assemble import assemble
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
            first.update({n: whole(p.grad) for n, p in zip(built.names, built.parameters, strict=True)})
        original()

    built.optimizer.step = keep_gradients  # type: ignore[method-assign]
    losses, norms = [], []
    for step, batch in enumerate(ragged_batches(steps, documents=documents, rows=rows, seed=seed), start=1):
        share = share_of(batch, mesh.data_rank, mesh.data_degree, mbs)
        valid = sum(int((b["targets"] >= 0).sum()) for b in share)
        result = policy.step(share, Counts(valid, 0, 0), job.optimizer.lr * step / steps)
        losses.append(result.loss)
        norms.append(result.grad_norm)
    weights = {n: whole(p.detach()) for n, p in zip(built.names, built.parameters, strict=True)}
    return {"losses": losses, "norms": norms, "first": first, "weights": weights}


def whole(tensor: torch.Tensor | None) -> torch.Tensor:
    """The full tensor of a shard, on every rank. Clipping may have scaled a gradient in place: it is kept as is."""
    assert tensor is not None
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()

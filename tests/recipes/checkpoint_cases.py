"""What the ranks of a reshard test run: a few steps on one layout, saved; read on another; everything gathered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paceline.deliver import cp
from paceline.deliver.mesh import Mesh, build_mesh
from paceline.deliver.wire.world import World
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import Ledger
from paceline.plan.layout import Layout
from paceline.recipes.assemble import Assembly, assemble
from paceline.recover.load import read
from paceline.recover.save import save
from paceline.update.every_step import Counts
from tests.recipes.parity_cases import CPU, gathered
from tests.tiny import ragged_batches, share_of

IDENTITY = {"run_id": "r", "job_hash": "j", "data_hash": "d", "tokenizer_hash": "t", "code_hash": "c"}


def save_on(
    world: World | None, *, folder: str, job: Job, widths: ModelWidths, layout: str
) -> dict[str, Any]:
    """Two steps on ``layout``, saved as step 2; the whole state, on every rank."""
    mesh, built = _assembly(world, job, widths, layout)
    _steps(built, job, mesh, 0, 2)
    state = built.state({"step": 2})
    save(Path(folder), state, layout=layout, identity=IDENTITY, world=mesh.everyone)
    return _whole(built, mesh)


def load_on(
    world: World | None, *, folder: str, job: Job, widths: ModelWidths, layout: str, more: int = 0
) -> dict[str, Any]:
    """The newest step read on ``layout``, then ``more`` steps; the whole state, on every rank."""
    mesh, built = _assembly(world, job.replace({"train.seed": 99}), widths, layout)
    state = built.state()
    read(Path(folder) / "step-00000002", state, world=mesh.everyone)
    built.load(state)
    _steps(built, job, mesh, 2, 2 + more)
    return _whole(built, mesh)


def _assembly(world: World | None, job: Job, widths: ModelWidths, layout: str) -> tuple[Mesh, Assembly]:
    mesh = build_mesh(Layout.parse(layout), 0 if world is None else world.rank, world)
    return mesh, assemble(job, widths, "fp64", mesh, CPU)


def _steps(built: Assembly, job: Job, mesh: Mesh, start: int, stop: int) -> None:
    policy = built.policy(job, mesh, CPU, Ledger(None))
    for batch in ragged_batches(stop, documents=True)[start:stop]:
        share = share_of(batch, mesh.data_rank, mesh.data_degree, 2)
        valid = sum(int((b["targets"] >= 0).sum()) for b in share)
        if mesh.layout.cp > 1:
            share = [cp.take(b, mesh.layout.cp, mesh.at["cp"]) for b in share]
        policy.step(share, Counts(valid, 0, 0), 1e-3)


def _whole(built: Assembly, mesh: Mesh) -> dict[str, Any]:
    found: dict[str, Any] = {"weights": gathered(built, mesh, [p.detach() for p in built.parameters])}
    for slot in ("exp_avg", "exp_avg_sq"):
        state = [built.optimizer.state.get(p, {}).get(slot) for p in built.parameters]
        found[slot] = gathered(built, mesh, state)
    buffers = {n: b.clone() for model in built.models for n, b in model.named_buffers()}
    found["buffers"] = {n: torch.as_tensor(b) for n, b in buffers.items()}
    return found


def load_and_save(
    world: World | None, *, folder: str, into: str, job: Job, widths: ModelWidths, layout: str
) -> None:
    """The checkpoint of ``folder`` read on ``layout`` and saved by it, without a step between."""
    mesh, built = _assembly(world, job.replace({"train.seed": 99}), widths, layout)
    state = built.state()
    read(Path(folder) / "step-00000002", state, world=mesh.everyone)
    built.load(state)
    again = built.state(dict(state.scalars))
    save(Path(into), again, layout=layout, identity=IDENTITY, world=mesh.everyone)


def save_first(
    world: World | None, *, folder: str, job: Job, widths: ModelWidths, layout: str, precision: str
) -> None:
    """What a run has before its first step, saved as step 0."""
    mesh = build_mesh(Layout.parse(layout), 0 if world is None else world.rank, world)
    built = assemble(job, widths, precision, mesh, CPU)
    scalars = {
        "step": 0, "position": 0, "tokens": 0.0, "samples": 0.0, "steps": 30, "seed": job.train.seed,
        "precision": precision,
    }  # fmt: skip
    save(Path(folder), built.state(scalars), layout=layout, identity=IDENTITY, world=mesh.everyone)

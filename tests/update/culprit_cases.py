"""What the ranks of the test of origins run."""

from __future__ import annotations

import math

import torch

from paceline.deliver.mesh import build_mesh
from paceline.deliver.wire.world import World
from paceline.ledger.spans import Ledger
from paceline.plan.layout import Layout
from paceline.recipes.assemble import assemble
from paceline.recover.state import local
from paceline.update.every_step import Counts
from tests.recipes.parity_cases import CPU
from tests.tiny import ragged_batches, share_of, tiny_job, tiny_widths


def poisoned(world: World | None, *, layout: str, poison: str) -> str:
    """One step with a NaN in the last rank but one's part (of two or three: rank 1); what is said of it."""
    rank = 0 if world is None else world.rank
    mesh = build_mesh(Layout.parse(layout), rank, world)
    job = tiny_job()
    built = assemble(job, tiny_widths(), "fp64", mesh, CPU)
    policy = built.policy(job, mesh, CPU, Ledger(None))
    chosen = rank == min(1, mesh.world_size - 1)
    name = f"layers.{3 if mesh.layout.pp > 1 else 1}.mlp.down_proj.weight"
    at = built.names.index(name) if name in built.names else None
    if poison == "weight" and chosen:
        assert at is not None
        with torch.no_grad():
            local(built.parameters[at]).view(-1)[0] = math.nan
    if poison == "gradient" and at is not None:
        parameter = built.parameters[at]

        def spoil() -> None:
            assert parameter.grad is not None
            local(parameter.grad).view(-1)[0] = math.nan

        policy.complete = spoil
    if poison == "loss" and chosen:
        plain = policy.passes.forward_backward
        # Only what is told of the loss: its gradients stay finite.
        object.__setattr__(policy.passes, "forward_backward", lambda *given: plain(*given) * math.nan)
    (batch,) = ragged_batches(1, documents=False)
    share = share_of(batch, mesh.data_rank, mesh.data_degree, 2)
    valid = sum(int((b["targets"] >= 0).sum()) for b in share)
    before = [local(p).clone() for p in built.parameters]
    result = policy.step(share, Counts(valid, 0, 0), 1e-3)
    assert result.verdict is not None
    assert all(
        torch.equal(local(p), local(q)) or local(q).isnan().any()
        for p, q in zip(built.parameters, before, strict=True)
    )
    return result.verdict.origin

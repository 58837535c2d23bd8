"""What the ranks of the delivery tests run: one step of a small model, and every collective that it made."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from paceline.deliver.axes import deliver
from paceline.deliver.delivery import Part, Precision
from paceline.deliver.mesh import build_mesh
from paceline.deliver.wire.world import World
from paceline.ledger.spans import CallRow, Ledger
from paceline.plan.layout import Layout

WIDTH = 8


class Layers(nn.Module):
    """Three layers, of which ``skip`` is not called."""

    def __init__(self, skip: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = x if i == self.skip else torch.tanh(layer(x))
        return x


def one_step(
    world: World, *, layout: str, micro_batches: int = 1, skip: int | None = None, reduce: str = "float32"
) -> dict[str, Any]:
    """Gradients (whole) of a sum of losses over all ranks' rows, and counts of (axis, operation)."""
    ledger = Ledger(None)
    calls: list[CallRow] = []
    ledger.call = calls.append  # type: ignore[method-assign]
    world.recorder.ledger = ledger
    parsed = Layout.parse(layout)
    mesh = build_mesh(parsed, world.rank, world)
    torch.manual_seed(0)
    model = Layers(skip)
    precision = Precision(torch.float32, getattr(torch, reduce))
    delivery = deliver([Part(model, list(model.layers))], mesh, precision)
    began = 0.0
    for _ in range(2):
        model.zero_grad()
        began = time.monotonic()
        for k in range(micro_batches):
            delivery.before(k == 0, k == micro_batches - 1)
            delivery.module(rows(world.rank, k)).sum().backward()
    # a call that nobody waits for is written down when it is dropped, perhaps in the next step: count by arrival
    counted = Counter((row.axis, row.op) for row in list(calls) if row.enter_s >= began)
    gradients = [None if p.grad is None else whole(p.grad) for p in model.parameters()]
    return {"calls": dict(counted), "gradients": gradients}


def rows(rank: int, k: int) -> Tensor:
    """Rows that differ by rank and micro-batch."""
    return torch.linspace(-1, 1, 2 * WIDTH).view(2, WIDTH) * (1 + rank + 10 * k)


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of a shard."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def expected(ranks: int, micro_batches: int, skip: int | None = None) -> list[Tensor | None]:
    """The same on one device without any wrapper."""
    torch.manual_seed(0)
    model = Layers(skip)
    for rank in range(ranks):
        for k in range(micro_batches):
            model(rows(rank, k)).sum().backward()
    return [p.grad for p in model.parameters()]

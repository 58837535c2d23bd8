"""What the ranks of row B063 run: weights that are used in the last micro-batch of a step only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.deliver.axes import deliver
from paceline.deliver.delivery import Part, Precision
from paceline.deliver.mesh import build_mesh
from paceline.deliver.wire.world import World
from paceline.plan.layout import Layout
from tests.deliver.traffic import rows, whole


class Late(nn.Module):
    """Two layers of two halves; what is late is used in the last micro-batch only."""

    def __init__(self, late: str) -> None:
        super().__init__()
        self.late = late
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: Tensor, last: bool) -> Tensor:
        for number, layer in enumerate(self.layers):
            if last or self.late != "layer" or number == 0:
                x = layer(x, last or self.late != "half")
        return x


class Layer(nn.Module):
    """Two halves, of which the second may be passed by."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.ModuleDict({name: nn.Linear(8, 8, bias=False) for name in ("first", "second")})

    def forward(self, x: Tensor, both: bool) -> Tensor:
        first, second = (self.halves[name].weight.to(x.dtype) for name in ("first", "second"))
        x = torch.tanh(nn.functional.linear(x, first))
        return x + nn.functional.linear(x, second) if both else x


def late(world: World, *, layout: str, late: str, micro_batches: int = 2) -> dict[str, list[Tensor]]:
    """Whole gradients by compute dtype, reduced in fp32."""
    mesh = build_mesh(Layout.parse(layout), world.rank, world)
    found = {}
    for name in ("float32", "bfloat16"):
        compute = getattr(torch, name)
        torch.manual_seed(0)
        model = Late(late)
        delivery = deliver([Part(model, list(model.layers))], mesh, Precision(compute, torch.float32))
        for k in range(micro_batches):
            delivery.before(k == 0, k == micro_batches - 1)
            x = rows(world.rank, k).to(compute)
            delivery.module(x, k == micro_batches - 1).float().sum().backward()
        found[name] = [whole(p.grad) for p in model.parameters() if p.grad is not None]
    return found


def alone(size: int, late: str, micro_batches: int = 2) -> list[Tensor]:
    """The same gradients on one device without any wrapper, in fp32."""
    torch.manual_seed(0)
    model = Late(late)
    for rank in range(size):
        for k in range(micro_batches):
            model(rows(rank, k), k == micro_batches - 1).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]

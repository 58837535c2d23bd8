"""A decoder in stages: what the ranks run, and the same on one device."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.compute.init import Fill, fill_slice
from paceline.compute.models.decoder import Decoder, Part
from paceline.deliver.wire.world import World
from paceline.plan.layout import Layout, balanced
from paceline.update.pipeline.runtime import Pipelined
from tests.tiny import LENGTH, ragged_batches, share_of, tiny_widths

ROWS = 2


def parts_of(count: int) -> list[dict[str, Tensor]]:
    """``count`` micro-batches of two rows, with documents; a row of them has no valid token."""
    batch = ragged_batches(1, documents=True, rows=ROWS * count)[0]
    return share_of(batch, 0, 1, ROWS)


def build(changes: dict[str, Any], part: Part | None, recompute: str = "none") -> Decoder:
    """A float64 decoder filled by name, so that a stage holds what the whole does."""
    model = Decoder(tiny_widths(**changes), torch.float64, part=part, recompute=recompute).to(torch.float64)
    with torch.no_grad():
        for name, p in model.named_parameters():
            fill_slice(p, Fill(std=0.3), seed=3, name=name, shape=p.shape, offsets=[0] * p.dim())
    return model


def valid(parts: list[dict[str, Tensor]]) -> Tensor:
    return sum((p["targets"] != -100).sum() for p in parts).double()  # type: ignore[union-attr]


def one_device(changes: dict[str, Any], count: int) -> tuple[float, dict[str, Tensor]]:
    model, parts, total = build(changes, None), parts_of(count), 0.0
    if model.balance is not None:
        model.balance.scale = 1 / valid(parts)
    for batch in parts:
        loss = model(batch["tokens"], batch["positions"], batch["segments"], batch["targets"])
        total += float(loss.detach())
        (loss / valid(parts)).backward()
    return total, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def step(world: World, *, layout: str, micro_batches: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Gradients of this rank's stages."""
    parsed = Layout.parse(layout)
    group = world.mesh({"pp": parsed.pp}).get_group("pp")
    layers = tiny_widths(**changes).num_hidden_layers
    numbers, modules = [], []
    for number, held in enumerate(balanced(layers, parsed.stages, i) for i in range(parsed.stages)):
        if parsed.stage_rank(number) == dist.get_rank(group):
            numbers.append(number)
            part = Part(held, embeds=number == 0, predicts=number == parsed.stages - 1)
            modules.append(build(changes, part, parsed.recompute))
    parts = parts_of(micro_batches)
    for module in modules:
        if module.balance is not None:
            module.balance.scale = 1 / valid(parts)
    shape = (ROWS, LENGTH, tiny_widths().hidden_size)
    given: list[nn.Module] = list(modules)
    run = Pipelined(given, numbers, parsed, group, torch.device("cpu"), micro_batches, shape, torch.float64)
    forwards: list[int] = []
    note_forwards(modules, forwards)
    loss = run.forward_backward(parts, valid(parts))
    gradients = [(name, p.grad) for module in modules for name, p in module.named_parameters()]
    return {"loss": float(loss), "gradients": gradients, "blocks": len(forwards)}


def note_forwards(models: list[Decoder], seen: list[int]) -> None:
    """Notes each time that a block is computed, again included."""
    for model in models:
        for number, block in model.layers.items():
            plain = block._forward

            def forward(*inputs: Any, number: str = number, plain: Any = plain) -> Tensor:
                seen.append(int(number))
                found: Tensor = plain(*inputs)
                return found

            block.__dict__["_forward"] = forward

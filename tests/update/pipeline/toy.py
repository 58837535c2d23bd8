"""A stack of small layers with the calling convention of the decoder, whole or a stage of it."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, WIDTH, LENGTH, ROWS = 13, 8, 6, 2


class Layer(nn.Module):
    """A residual layer; ``positions`` and ``segments`` count, so that a batch mixed up shows."""

    def __init__(self, number: int) -> None:
        super().__init__()
        gen = torch.Generator().manual_seed(100 + number)
        self.up = nn.Parameter(torch.randn(2 * WIDTH, WIDTH, generator=gen, dtype=torch.float64) / WIDTH)
        self.down = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH, generator=gen, dtype=torch.float64) / WIDTH)
        self.norm = nn.Parameter(1 + 0.1 * torch.randn(WIDTH, generator=gen, dtype=torch.float64))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        y = F.rms_norm(x, (WIDTH,)) * self.norm + at[..., None] / 10
        return x + torch.tanh(y @ self.up.T) @ self.down.T


class Toy(nn.Module):
    """Layers by their global number, with embedding and head where asked for."""

    def __init__(self, layers: range, embeds: bool, predicts: bool, pause_s: float = 0.0) -> None:
        super().__init__()
        gen = torch.Generator().manual_seed(7)
        table = torch.randn(VOCAB, WIDTH, generator=gen, dtype=torch.float64)
        head = torch.randn(VOCAB, WIDTH, generator=gen, dtype=torch.float64)
        self.layers = nn.ModuleDict({str(i): Layer(i) for i in layers})
        self.embed_tokens = nn.Parameter(table) if embeds else None
        self.lm_head = nn.Parameter(head) if predicts else None
        self.pause_s = pause_s

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        if self.embed_tokens is not None:
            x = F.embedding(x, self.embed_tokens)
        if self.pause_s:
            time.sleep(self.pause_s)
        at = x.new_zeros(x.shape[:2])
        for extra in (positions, segments):
            at = at if extra is None else at + extra
        for layer in self.layers.values():
            x = layer(x, at)
        if self.lm_head is None:
            return x
        assert targets is not None
        logits = (x @ self.lm_head.T).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")


def batches(count: int, seed: int = 0, documents: bool = True) -> list[dict[str, Tensor]]:
    """Micro-batches with unequal counts of valid tokens; of three, one has none."""
    gen = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        shape = (ROWS, LENGTH)
        targets = torch.randint(0, VOCAB, shape, generator=gen)
        targets[torch.rand(shape, generator=gen) < 0.2 * (i % 4)] = -100
        if i % 3 == 2:
            targets[:] = -100
        batch = {"tokens": torch.randint(0, VOCAB, shape, generator=gen), "targets": targets}
        if documents:
            batch["positions"] = torch.arange(LENGTH).expand(shape) + i
            batch["segments"] = torch.randint(0, 3, shape, generator=gen)
        found.append(batch)
    return found


def valid(parts: list[dict[str, Tensor]]) -> Tensor:
    """Valid targets, at least one, float64."""
    count = sum((batch["targets"] != -100).sum() for batch in parts)
    return torch.as_tensor(count, dtype=torch.float64).clamp(min=1)


def on_one_device(layers: int, parts: list[dict[str, Tensor]]) -> tuple[float, dict[str, Tensor]]:
    """Loss sum and gradients of the whole stack, of the mean over valid targets."""
    model = Toy(range(layers), embeds=True, predicts=True)
    total = 0.0
    for batch in parts:
        rest = dict(batch)
        loss = model(rest.pop("tokens"), **rest)
        total += float(loss.detach())
        (loss / valid(parts)).backward()
    return total, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

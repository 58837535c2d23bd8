"""A model cut in two by its own table, both halves in one process: a thread each, that meet in the seams.

Here the residual stream is whole in both (tp without sequence parallelism), which a stream seam may be; what is
tested is the table and that the model calls its seams where it must. The real seams have tests of their own.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.compute.models.cuts import cuts_of
from paceline.compute.models.decoder import Decoder
from paceline.compute.seams import Seams
from paceline.compute.step import micro_batch_loss
from paceline.job.presets import ModelWidths
from tests.compute.models.families import batch_of, filled

HALVES = 2
OWN_HEADS = (
    "q_norm",
    "k_norm",
    "q_a_proj",
    "q_a_layernorm",
    "kv_a_proj_with_mqa",
    "kv_a_layernorm",
)


class Table:
    """Where the threads lay down what they have, and take up what all have."""

    def __init__(self) -> None:
        self._laid: list[Any] = [None] * HALVES
        self._barrier = threading.Barrier(HALVES)

    def all(self, index: int, value: Tensor) -> Tensor:
        self._laid[index] = value.detach().clone()
        self._barrier.wait(20)
        every = torch.stack(self._laid)
        self._barrier.wait(20)
        return every


class Added(torch.autograd.Function):
    """Σ over halves; the stream is the same in both, so the gradient passes as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Table, index: int) -> Tensor:
        return table.all(index, x).sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad, None, None


class Spread(torch.autograd.Function):
    """The mirror image: what both halves add to the gradient of the stream is added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Table, index: int) -> Tensor:
        ctx.at = table, index
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        table, index = ctx.at
        return table.all(index, grad).sum(0), None, None


class HalfSeam:
    """Stream and vocabulary of one half."""

    def __init__(self, table: Table, index: int, backward: Table) -> None:
        self._table, self._index, self._backward = table, index, backward

    def gather(self, x: Tensor) -> Tensor:
        return Spread.apply(x, self._backward, self._index)

    def spread(self, y: Tensor) -> Tensor:
        return Added.apply(y, self._table, self._index)

    def part(self, t: Tensor) -> Tensor:
        return t

    def rows(self, vocab_size: int) -> range:
        middle = (vocab_size + 1) // 2
        return range(middle) if self._index == 0 else range(middle, vocab_size)

    def lookup(self, tokens: Tensor, weight: Tensor, vocab_size: int) -> Tensor:
        rows = self.rows(vocab_size)
        here = (tokens >= rows.start) & (tokens < rows.stop)
        return F.embedding((tokens - rows.start) * here, weight) * here[..., None]

    def max_(self, values: Tensor) -> Tensor:
        return values.copy_(self._table.all(self._index, values).amax(0))

    def sum_(self, values: Tensor) -> Tensor:
        return values.copy_(self._table.all(self._index, values).sum(0))


def loss_of_whole(widths: ModelWidths) -> dict[str, Tensor]:
    """Loss and gradients of the whole model."""
    model = filled(widths)
    loss = micro_batch_loss(model, batch_of(documents=True))
    loss.backward()
    return {"loss": loss.detach()} | {n: _grad(p) for n, p in model.named_parameters()}


def loss_of_halves(widths: ModelWidths) -> dict[str, Tensor]:
    """The same of the halves, put together."""
    found: dict[int, dict[str, Tensor]] = {}
    forward, backward = Table(), Table()

    def work(index: int) -> None:
        seam = HalfSeam(forward, index, backward)
        model = filled(widths, seams=Seams(stream=seam, vocabulary=seam))
        _cut(model, widths, index)
        loss = micro_batch_loss(model, batch_of(documents=True))
        loss.backward()
        found[index] = {"loss": loss.detach()} | {n: _grad(p) for n, p in model.named_parameters()}

    threads = [threading.Thread(target=work, args=(i,)) for i in range(HALVES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return {name: _together(name, widths, [found[i][name] for i in range(HALVES)]) for name in found[0]}


def _cut(model: Decoder, widths: ModelWidths, index: int) -> None:
    for name, parameter in list(model.named_parameters()):
        for cut in cuts_of(name, widths):
            if cut.axis == "tp":
                size, middle = parameter.shape[cut.dim] // cut.units, (cut.units + 1) // 2
                start, length = (0, middle) if index == 0 else (middle, cut.units - middle)
                part = parameter.detach().narrow(cut.dim, start * size, length * size).clone()
                owner, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(owner), leaf, nn.Parameter(part))
    model.tie_weights()


def _together(name: str, widths: ModelWidths, parts: list[Tensor]) -> Tensor:
    if name == "loss":
        assert torch.equal(parts[0], parts[1])
        return parts[0]
    for cut in cuts_of(name, widths):
        if cut.axis == "tp":
            return torch.cat(parts, cut.dim)
    # Whole in both: a gradient that passed through the stream is the same in both, one that met only the half's own
    # heads is a part of a sum.
    return torch.stack(parts).sum(0) if any(f".{word}." in name for word in OWN_HEADS) else parts[0]


def _grad(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.detach()

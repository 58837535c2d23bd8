"""Recomputing changes no gradient and no name, and what is kept really falls."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.compute.models.decoder import Decoder, Part
from paceline.compute.models.recompute import RECOMPUTE
from paceline.compute.step import micro_batch_loss
from tests.compute.models.families import DENSE, SPARSE, batch_of, filled, widths_of
from tests.tiny import tiny_widths


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("family", [*DENSE, *SPARSE])
def test_losses_and_gradients_are_bit_equal(family: str, recompute: str) -> None:
    widths, batch = widths_of(family), batch_of(documents=True)
    plain, other = filled(widths), filled(widths, recompute=recompute)
    assert [n for n, _ in plain.named_parameters()] == [n for n, _ in other.named_parameters()]
    losses = []
    for model in (plain, other):
        losses.append(micro_batch_loss(model, batch))
        losses[-1].backward()
    assert torch.equal(losses[0], losses[1])
    for (name, a), (_, b) in zip(plain.named_parameters(), other.named_parameters(), strict=True):
        assert a.grad is not None, name
        assert b.grad is not None, name
        assert torch.equal(a.grad, b.grad), name


class Watch(TorchDispatchMode):
    """Counts matrix products, and the bytes of what was made while it was on and is still in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return out

    def kept_bytes(self, model: torch.nn.Module) -> int:
        """Weights apart, which come out of operators as views."""
        weights = {p.untyped_storage()._cdata for p in model.parameters()}
        alive = (key for key, (made, _) in self._made.items() if not made.expired())
        return sum(self._made[key][1] for key in alive if key not in weights)


def watched(layers: int, recompute: str) -> tuple[int, int, int]:
    """Bytes alive between forward and backward, and matrix products of each of them."""
    widths = tiny_widths(hidden_size=64, intermediate_size=192, head_dim=16, num_hidden_layers=layers)
    model = Decoder(widths, recompute=recompute)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.02, generator=torch.Generator().manual_seed(1))
    with Watch() as watch:
        loss = micro_batch_loss(model, batch_of(4, 64, documents=False))
        forward, kept = watch.products, watch.kept_bytes(model)
        loss.backward()
    return kept, forward, watch.products - forward


def per_layer(recompute: str) -> tuple[float, float, float]:
    """What each further layer adds, in units of one activation [B, T, D] in float32, and products."""
    few, many = watched(2, recompute), watched(6, recompute)
    unit = 4 * 64 * 64 * 4
    kept, forward, backward = ((b - a) / 4 for a, b in zip(few, many, strict=True))
    return kept / unit, forward, backward


def test_what_is_kept_falls_and_products_are_repeated_only_by_full() -> None:
    """Seven products a layer, and two for each in the backward.

    Kept of a block with D = 64, F = 3 D, G = H / 2, in units of D: without recomputing, what the planner counts; with
    selective, the block's input, the outputs of the seven products (1 + ½ + ½ + 1 + 3 + 3 + 1) and of attention (1);
    with full, the input alone.
    """
    none, selective, full = (per_layer(kind) for kind in RECOMPUTE)
    assert none[1:] == (7, 14)
    assert selective[1:] == (7, 14)
    assert full[1] == 7
    assert 19 <= full[2] <= 21  # the last product's output is not needed again
    assert full[0] == pytest.approx(1.0, abs=0.05)
    assert selective[0] == pytest.approx(12.0, rel=0.05)
    assert none[0] > 1.5 * selective[0]


def test_a_forward_without_gradients_is_not_wrapped() -> None:
    model = filled(widths_of("llama"), recompute="full")
    with torch.no_grad(), Watch() as watch:
        micro_batch_loss(model, batch_of(documents=False))
    assert watch.products == 4 * 7 + 1


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_backward_in_two_halves(recompute: str) -> None:
    """As zero-bubble pipelines do with an inner stage: the input's gradient first, the weights' later."""
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    widths = widths_of("llama")
    model = filled(widths, part=Part(range(1, 4), False, True), recompute=recompute)
    twin = filled(widths, part=Part(range(1, 4), False, True))
    batch = batch_of(documents=False)
    x = torch.randn(3, 16, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss = model(mine, targets=batch["targets"])
    inputs, groups = stage_backward_input([loss], None, [mine], model.parameters())
    stage_backward_weight(model.parameters(), groups)
    twin(other, targets=batch["targets"]).backward()
    assert inputs[0] is not None
    assert other.grad is not None
    assert torch.allclose(inputs[0], other.grad, rtol=1e-12)
    for (name, a), (_, b) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert a.grad is not None, name
        assert b.grad is not None, name
        assert torch.allclose(a.grad, b.grad, rtol=1e-10, atol=1e-13 * float(b.grad.abs().max())), name


@pytest.mark.parametrize("recompute", RECOMPUTE[1:])
def test_a_compiled_block_is_one_graph(recompute: str) -> None:
    """A side effect inside the region that is recomputed would leave the whole block to eager mode, in silence."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    widths = dataclasses.replace(widths_of("gemma2"), num_hidden_layers=2, layer_types=None)
    plain, model = filled(widths), filled(widths, recompute=recompute)
    for layer in model.layers.values():
        layer.compile(backend="aot_eager")
    batch = batch_of(documents=True)
    losses = [micro_batch_loss(m, batch) for m in (plain, model)]
    for loss in losses:
        loss.backward()
    assert torch.allclose(losses[0], losses[1], rtol=1e-13)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1
    for (name, a), (_, b) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad, b.grad, rtol=1e-10, atol=1e-13 * float(a.grad.abs().max())), name

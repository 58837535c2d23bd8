"""The fused loss against torch's own, cut in every way: chunks, vocabulary shards, caps, halves of a backward."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from paceline.compute import loss as loss_module
from paceline.compute.loss import IGNORED, chunks, linear_cross_entropy, soft_cap

VOCAB, HIDDEN = 13, 6


def case(dtype: torch.dtype = torch.float64, valid: float = 0.7) -> tuple[Tensor, Tensor, Tensor]:
    gen = torch.Generator().manual_seed(5)
    hidden = torch.randn(2, 9, HIDDEN, dtype=torch.float64, generator=gen)
    weight = torch.randn(VOCAB, HIDDEN, dtype=torch.float64, generator=gen)
    targets = torch.randint(0, VOCAB, (2, 9), generator=gen)
    targets[torch.rand(2, 9, generator=gen) >= valid] = IGNORED
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, cap: float | None = None) -> Tensor:
    logits = hidden @ weight.T
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def fused(hidden: Tensor, weight: Tensor, targets: Tensor, cap: float | None = None, **given: Any) -> Tensor:
    return linear_cross_entropy(hidden, weight, targets, vocab_size=VOCAB, cap=cap, **given)


@pytest.fixture(params=[1 << 23, 4 * VOCAB, 1], ids=["one chunk", "fours", "ones"])
def chunked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_NUMBERS", request.param)


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("valid", [0.7, 1.0, 0.0])
def test_loss_and_gradients_are_torchs_own(chunked: None, cap: float | None, valid: float) -> None:
    hidden, weight, targets = case(valid=valid)
    found = torch.autograd.grad(
        total := fused(hidden, weight, targets, cap), (hidden, weight), torch.tensor(3.0)
    )
    expected = torch.autograd.grad(plain_total := plain(hidden, weight, targets, cap), (hidden, weight))
    assert torch.allclose(total, plain_total, rtol=1e-14, atol=0)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, 3 * other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("cap", [None, 1.5])
def test_gradients_are_finite_differences(chunked: None, cap: float | None) -> None:
    hidden, weight, targets = case()
    hidden, weight = (t.detach()[..., :5, :3].clone().requires_grad_() for t in (hidden, weight))
    assert torch.autograd.gradcheck(lambda x, w: fused(x, w, targets[:, :5] % 5, cap), (hidden, weight))
    assert torch.autograd.gradcheck(lambda x: soft_cap(x, 1.5), (hidden,))


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_low_precision_is_near(chunked: None, dtype: torch.dtype, limit: float) -> None:
    hidden, weight, targets = case(dtype)
    total = fused(hidden, weight, targets)
    total.backward()
    wide = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    expected = plain(wide[0], wide[1], targets)
    expected.backward()
    assert total.dtype == torch.float32
    assert float(abs(total - expected) / expected) < limit
    for found, true in zip((hidden, weight), wide, strict=True):
        assert found.grad is not None
        assert true.grad is not None
        assert found.grad.dtype == dtype
        assert float((found.grad - true.grad).abs().max() / true.grad.abs().max()) < limit


def test_a_large_logit_does_not_overflow() -> None:
    hidden, weight, targets = case(torch.float32)
    total = fused(hidden * 1e4, weight, targets)
    assert bool(total.isfinite())
    assert torch.allclose(total, plain(hidden * 1e4, weight, targets), rtol=1e-5)


def saved() -> tuple[list[Tensor], Any]:
    """What autograd saves, and the hooks that note it."""
    kept: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    return kept, torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)


def test_without_gradients_nothing_is_kept() -> None:
    hidden, weight, targets = case()
    with torch.no_grad():
        assert torch.equal(fused(hidden, weight, targets), fused(hidden.detach(), weight.detach(), targets))
    kept, hooks = saved()
    with torch.no_grad(), hooks:
        fused(hidden, weight, targets)
    assert not kept


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_a_frozen_side_costs_nothing_and_the_other_is_right(frozen: str) -> None:
    hidden, weight, targets = case()
    (hidden if frozen == "hidden" else weight).requires_grad_(False)
    alive = weight if frozen == "hidden" else hidden
    kept, hooks = saved()
    with hooks:
        total = fused(hidden, weight, targets)
    assert [t.shape.numel() for t in kept] == [alive.numel()]
    (found,) = torch.autograd.grad(total, (alive,))
    (expected,) = torch.autograd.grad(plain(hidden, weight, targets), (alive,))
    assert torch.allclose(found, expected, rtol=1e-12)


def test_the_logits_are_never_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    monkeypatch.setattr(loss_module, "CHUNK_NUMBERS", 3 * VOCAB)
    largest = 0

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.numel())
            return out

    hidden, weight, targets = case()
    with Largest():
        fused(hidden, weight, targets).backward()
    assert largest == max(hidden.numel(), weight.numel()) < targets.numel() * VOCAB


def test_a_chunk_depends_on_the_vocabulary_alone() -> None:
    assert [s.stop - s.start for s in chunks(200, 1 << 17)] == [64, 64, 64, 8]
    assert list(chunks(100, 256)) == [slice(0, 100)]
    assert list(chunks(0, 256)) == []


def test_in_a_checkpoint() -> None:
    hidden, weight, targets = case()
    total = checkpoint(fused, hidden, weight, targets, use_reentrant=False)
    found = torch.autograd.grad(total, (hidden, weight))
    expected = torch.autograd.grad(plain(hidden, weight, targets), (hidden, weight))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_weight_gets_both_gradients(tied: bool) -> None:
    _, table, targets = case()
    tokens = targets.clamp(min=0)
    head = table if tied else table.detach().clone().requires_grad_()
    fused(F.embedding(tokens, table), head, targets).backward()
    twin = table.detach().clone().requires_grad_()
    head_twin = twin if tied else twin.detach().clone().requires_grad_()
    plain(F.embedding(tokens, twin), head_twin, targets).backward()
    assert table.grad is not None
    assert twin.grad is not None
    assert torch.allclose(table.grad, twin.grad, rtol=1e-12)


def test_a_backward_in_two_halves() -> None:
    """As zero-bubble pipelines do: first the gradient of the stage's input, later those of its weights."""
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    hidden, plain_weight, targets = case()
    weight = torch.nn.Parameter(plain_weight.detach())
    scale = torch.nn.Parameter(torch.ones(HIDDEN, dtype=torch.float64))
    total = fused(torch.tanh(hidden) * scale, weight, targets) / 7
    parameters = [scale, weight]
    inputs, groups = stage_backward_input([total], None, [hidden], iter(parameters))
    assert weight.grad is None
    stage_backward_weight(iter(parameters), groups)
    twin = [t.detach().clone().requires_grad_() for t in (hidden, scale, weight)]
    (plain(torch.tanh(twin[0]) * twin[1], twin[2], targets) / 7).backward()
    for found, true in zip((inputs[0], scale.grad, weight.grad), twin, strict=True):
        assert found is not None
        assert true.grad is not None
        assert torch.allclose(found, true.grad, rtol=1e-12, atol=1e-15)


class Shard:
    """A vocabulary shared by threads, one for each shard."""

    def __init__(self, rows: range, index: int, board: list[Tensor | None], meet: threading.Barrier) -> None:
        self._rows, self._index, self._board, self._meet = rows, index, board, meet

    def rows(self, vocab_size: int) -> range:
        return self._rows

    def lookup(self, tokens_BT: Tensor, weight_RD: Tensor, vocab_size: int) -> Tensor:
        raise NotImplementedError

    def _all(self, values: Tensor) -> Tensor:
        self._board[self._index] = values.clone()
        self._meet.wait(10)
        every = torch.stack([t for t in self._board if t is not None])
        self._meet.wait(10)
        return every

    def max_(self, values: Tensor) -> Tensor:
        return values.copy_(self._all(values).amax(0))

    def sum_(self, values: Tensor) -> Tensor:
        return values.copy_(self._all(values).sum(0))


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("borders", [(0, 7, 13), (0, 1, 5, 13)], ids=["two", "three"])
def test_shards_of_the_vocabulary_make_the_whole(
    chunked: None, cap: float | None, borders: tuple[int, ...]
) -> None:
    hidden, weight, targets = case()
    parts = [range(a, b) for a, b in itertools.pairwise(borders)]
    board: list[Tensor | None] = [None] * len(parts)
    meet, found = threading.Barrier(len(parts)), {}

    def work(index: int, rows: range) -> None:
        x = hidden.detach().clone().requires_grad_()
        w = weight.detach()[rows.start : rows.stop].clone().requires_grad_()
        total = fused(x, w, targets, cap, vocabulary=Shard(rows, index, board, meet))
        found[index] = (total.detach(), *torch.autograd.grad(total, (x, w)))

    threads = [threading.Thread(target=work, args=(i, rows)) for i, rows in enumerate(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    expected = plain(hidden, weight, targets, cap)
    d_hidden, d_weight = torch.autograd.grad(expected, (hidden, weight))
    assert all(torch.allclose(found[i][0], expected, rtol=1e-13) for i in range(len(parts)))
    assert torch.allclose(
        torch.stack([found[i][1] for i in range(len(parts))]).sum(0), d_hidden, rtol=1e-11, atol=1e-13
    )
    assert torch.allclose(
        torch.cat([found[i][2] for i in range(len(parts))]), d_weight, rtol=1e-11, atol=1e-13
    )

"""What the ranks of the tests of moves, tp and cp run. Whole tensors come from one seed on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.deliver.moves import exchange, gather, part_of, scatter_sum
from paceline.deliver.wire.world import World
from paceline.ledger.spans import CallRow, Ledger

SHAPES = ((1, 8, 3), (3, 8, 5), (2, 4, 8, 3))


def group_of(world: World) -> dist.ProcessGroup:
    """All ranks, as one axis. They meet: one that sends nothing could be gone while the others still connect."""
    group = world.group("cut", range(world.size))
    dist.all_reduce(torch.zeros(1), group=group)
    return group


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype)


@contextmanager
def poisoned() -> Iterator[None]:
    """Fresh memory is NaN, so that what nobody wrote shows."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def calls_of(world: World) -> list[CallRow]:
    """Every call from now on."""
    ledger, calls = Ledger(None), []
    ledger.call = calls.append  # type: ignore[method-assign]
    world.recorder.ledger = ledger
    return calls


def error(got: Tensor, wanted: Tensor) -> float:
    """Largest difference, NaN counted as infinite."""
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    assert got.dtype == wanted.dtype
    return float((got - wanted).abs().nan_to_num(nan=torch.inf).max()) if got.numel() else 0.0


def moves(world: World) -> float:
    """Each collective along each dim of each shape, forward and backward, against one process; largest error."""
    group, worst = group_of(world), 0.0
    with poisoned():
        for seed, shape in enumerate(SHAPES):
            for dim in range(len(shape)):
                if shape[dim] % world.size == 0:
                    worst = max(worst, _gathered(group, shape, dim, seed), _summed(group, shape, dim, seed))
        return max(worst, _exchanged(group))


def _gathered(group: dist.ProcessGroup, shape: tuple[int, ...], dim: int, seed: int) -> float:
    whole = drawn(*shape, seed=seed)
    part = part_of(whole, dim, group).clone().requires_grad_()
    found = gather(part, dim, group)
    # every rank weighs the result differently, so the gradient of a part is the sum of all ranks' weights
    weights = [drawn(*shape, seed=100 + rank) for rank in range(group.size())]
    (found * weights[group.rank()]).sum().backward()
    assert part.grad is not None
    return max(
        error(found.detach(), whole), error(part.grad, part_of(torch.stack(weights).sum(0), dim, group))
    )


def _summed(group: dist.ProcessGroup, shape: tuple[int, ...], dim: int, seed: int) -> float:
    terms = [drawn(*shape, seed=seed + 10 * rank) for rank in range(group.size())]
    mine = terms[group.rank()].clone().requires_grad_()
    found = scatter_sum(mine, dim, group)
    weight = drawn(*shape, seed=99)
    (found * part_of(weight, dim, group)).sum().backward()
    assert mine.grad is not None
    return max(
        error(found.detach(), part_of(torch.stack(terms).sum(0), dim, group)), error(mine.grad, weight)
    )


def _exchanged(group: dist.ProcessGroup) -> float:
    n, me = group.size(), group.rank()
    sent = [drawn(n, 2, 3, seed=rank) for rank in range(n)]
    weights = [drawn(n, 2, 3, seed=50 + rank) for rank in range(n)]
    # a transposed view: what arrives must not depend on how it lay in memory
    mine = sent[me].transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    found = exchange(mine, group)
    (found * weights[me]).sum().backward()
    assert mine.grad is not None
    wanted = torch.stack([sent[rank][me] for rank in range(n)])
    return max(
        error(found.detach(), wanted), error(mine.grad, torch.stack([weights[rank][me] for rank in range(n)]))
    )


def dtypes(world: World) -> dict[str, float]:
    """The sum of small integers is exact in every dtype that may be sent."""
    group = group_of(world)
    found = {}
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.arange(24).view(1, 8, 3).to(dtype).requires_grad_()
        part = scatter_sum(x, 1, group)
        whole = gather(part, 1, group)
        whole.sum().backward()
        assert x.grad is not None
        assert whole.dtype == x.grad.dtype == dtype
        found[str(dtype)] = max(
            error(whole.detach(), x.detach() * world.size),
            error(x.grad, torch.full_like(x.grad, world.size)),
        )
    return found


def copies(world: World) -> list[bool]:
    """With one row, whether the result of a gather and the input of a sum lie where the collective put them."""
    group = group_of(world)
    whole = gather(drawn(1, 4, 3), 1, group)
    two = gather(drawn(2, 4, 3), 1, group)
    return [whole._base is not None and whole.is_contiguous(), two.is_contiguous()]


def toy(group: dist.ProcessGroup) -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor]:
    """A cut sub-layer: gather, product with a slice, spread; with its weight slice and its stream part."""
    n, me = group.size(), group.rank()
    up, down = drawn(6, 2 * n, seed=1), drawn(2 * n, 6, seed=2)
    weight = torch.cat((part_of(up, 1, group).t(), part_of(down, 0, group))).clone().requires_grad_()

    def sub_layer(x_BPD: Tensor, weight: Tensor) -> Tensor:
        x = gather(x_BPD, 1, group)
        y = torch.tanh(x @ weight[:2].t()) @ weight[2:]
        return x_BPD + scatter_sum(y, 1, group)

    part = part_of(drawn(2, 8, 6, seed=3), 1, group).clone().requires_grad_()
    assert me < n
    return sub_layer, part, weight


def plain_toy(n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same on one device: output, and gradients of x, up and down, of a loss of squares."""
    up, down = drawn(6, 2 * n, seed=1).requires_grad_(), drawn(2 * n, 6, seed=2).requires_grad_()
    x = drawn(2, 8, 6, seed=3).requires_grad_()
    y = x + torch.tanh(x @ up) @ down
    y.square().sum().backward()
    assert x.grad is not None
    assert up.grad is not None
    assert down.grad is not None
    return y.detach(), x.grad, up.grad, down.grad


def sub_layer(world: World, how: str) -> float:
    """The toy under each caller that plays tricks with autograd; largest error of output and gradients."""
    group = group_of(world)
    layer, x, weight = toy(group)
    with poisoned():
        y = HOW[how](layer, x, weight)
    assert x.grad is not None
    assert weight.grad is not None
    wanted_y, wanted_x, wanted_up, wanted_down = plain_toy(group.size())
    return max(
        error(y.detach(), part_of(wanted_y, 1, group)),
        error(x.grad, part_of(wanted_x, 1, group)),
        error(weight.grad[:2], part_of(wanted_up, 1, group).t()),
        error(weight.grad[2:], part_of(wanted_down, 0, group)),
    )


Layer = Callable[[Tensor, Tensor], Tensor]


def _plain(layer: Layer, x: Tensor, weight: Tensor) -> Tensor:
    y = layer(x, weight)
    y.square().sum().backward()
    return y


def _checkpoint(layer: Layer, x: Tensor, weight: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    y = checkpoint(layer, x, weight, use_reentrant=False)
    y.square().sum().backward()
    return y


def _selective(layer: Layer, x: Tensor, weight: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    saved = [torch.ops.aten.mm.default, torch.ops.aten.bmm.default]
    y = checkpoint(
        layer,
        x,
        weight,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(saved),
    )
    y.square().sum().backward()
    return y


def _split_backward(layer: Layer, x: Tensor, weight: Tensor) -> Tensor:
    """As the zero-bubble schedules do it: first the gradient of the input, later that of the weights."""
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    y = layer(x, weight)
    loss = y.square().sum()
    _, groups = stage_backward_input([loss], None, [x], iter([weight]))
    assert weight.grad is None
    stage_backward_weight(iter([weight]), groups)
    return y


def _compiled(layer: Layer, x: Tensor, weight: Tensor) -> Tensor:
    torch._dynamo.reset()
    y = torch.compile(layer, backend="aot_eager")(x, weight)
    y.square().sum().backward()
    return y


HOW: dict[str, Callable[[Layer, Tensor, Tensor], Tensor]] = {
    "plain": _plain,
    "checkpoint": _checkpoint,
    "selective": _selective,
    "split backward": _split_backward,
    "compiled": _compiled,
}

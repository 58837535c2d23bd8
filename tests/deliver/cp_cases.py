"""What the ranks of the context parallelism's tests run."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor

from paceline.compute.models.decoder import Decoder
from paceline.compute.seams import Look, Seams, plain_attention
from paceline.deliver import cp
from paceline.deliver.wire.world import World
from paceline.ledger.outcome import Refused
from tests.deliver.moves_cases import calls_of, drawn, error, group_of, poisoned
from tests.tiny import VOCAB, tiny_widths

BATCH, LENGTH = 3, 16

LOOKS: dict[str, dict[str, Any]] = {
    "causal": {},
    "documents": {"documents": True},
    "window": {"window": 3},
    "window of 1": {"window": 1},
    "window and documents": {"window": 5, "documents": True},
    "cap": {"cap": 2.0},
    "cap, window, documents": {"cap": 2.0, "window": 5, "documents": True},
    "scale": {"scale": 0.1},
}
HEADS: dict[str, tuple[int, int, int, int]] = {  # query heads, key/value heads, head dim, value head dim
    "every head its own": (4, 4, 8, 8),
    "grouped": (4, 2, 8, 8),
    "one for all": (4, 1, 8, 8),
    "latent": (4, 4, 12, 8),
    "three": (12, 3, 4, 6),
}


def look_of(what: str) -> Look:
    wish = dict(LOOKS[what])
    if wish.pop("documents", False):
        wish["segments_BS"] = ragged_documents()
    return Look(**wish)


def ragged_documents() -> Tensor:
    """Borders that differ by row and fall inside of chunks; the last row is one document."""
    borders = torch.rand(BATCH, LENGTH, generator=torch.Generator().manual_seed(5)) < 0.3
    borders[-1] = False
    return borders.cumsum(1)


def attention(world: World, kind: str, looks: list[str], heads: list[str]) -> dict[tuple[str, str], float]:
    """Largest error of output and of the gradients of q, k and v, for each look and each set of heads."""
    group = group_of(world)
    attend = cp.attention(kind, group)
    with poisoned():
        return {
            (what, which): _compared(world, attend, look_of(what), HEADS[which])
            for what in looks
            for which in heads
        }


def _compared(world: World, attend: Any, look: Look, heads: tuple[int, int, int, int]) -> float:
    h, g, k, v = heads
    whole = [
        drawn(BATCH, n, LENGTH, dim, seed=i).requires_grad_()
        for i, (n, dim) in enumerate([(h, k), (g, k), (g, v)])
    ]
    weight = drawn(BATCH, h, LENGTH, v, seed=9)
    here = cp.rows(LENGTH, world.size, world.rank)
    # as a model hands them over: transposed views of [B, T, H, K]
    mine = [
        x.detach()[:, :, here].transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in whole
    ]
    wanted = plain_attention(*whole, look)
    (wanted * weight).sum().backward()
    found = attend(*mine, look)
    (found * weight[:, :, here]).sum().backward()
    errors = [error(found.detach(), wanted.detach()[:, :, here])]
    for got, want in zip(mine, whole, strict=True):
        assert got.grad is not None
        assert want.grad is not None
        errors.append(error(got.grad, want.grad[:, :, here]))
    return max(errors)


def traffic(world: World, kind: str) -> list[tuple[str, int]]:
    """Every call of one forward and backward of one layer, with its bytes."""
    attend = cp.attention(kind, group_of(world))
    calls = calls_of(world)
    q, k, v = (drawn(1, heads, 8 // world.size, 4).requires_grad_() for heads in (4, 2, 2))
    attend(q, k, v, Look()).sum().backward()
    return [(row.op, row.bytes) for row in calls]


def refused(world: World, kind: str, heads: int) -> tuple[int, str]:
    """How an attention that cannot be is refused: exit code and repair."""
    x = drawn(1, heads, 4, 4)
    try:
        cp.attention(kind, group_of(world))(x, x, x, Look())
    except Refused as error:
        return error.exit_code, error.use
    raise AssertionError("not refused")


VALID: dict[str, slice] = {
    "all": slice(None),
    "second half": slice(LENGTH // 2, None),
    "one rank's": slice(0, 2),  # of the first rank's first chunk only: the others have none
    "none": slice(0, 0),
}


def batch_of(valid: str, documents: bool) -> dict[str, Tensor]:
    gen = torch.Generator().manual_seed(3)
    stream = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=gen)
    targets = torch.full((BATCH, LENGTH), -100)
    targets[:, VALID[valid]] = stream[:, 1:][:, VALID[valid]]
    batch = {"tokens": stream[:, :-1].contiguous(), "targets": targets}
    if documents:
        segments = ragged_documents()
        index = torch.arange(LENGTH).expand(BATCH, -1)
        starts = torch.where(segments.diff(dim=1, prepend=segments[:, :1]) > 0, index, 0).cummax(1).values
        batch |= {"segments": segments, "positions": index - starts}
    return batch


def model_of(attend: Any = plain_attention, compiled: bool = False) -> Decoder:
    widths = tiny_widths(
        num_hidden_layers=2, sliding_window=5, layer_types=("sliding_attention", "full_attention")
    )
    model = Decoder(widths, torch.float64, Seams(attend=attend)).double()
    for i, parameter in enumerate(model.parameters()):
        parameter.data = 0.3 * drawn(*parameter.shape, seed=i)
    if compiled:
        for layer in model.layers.values():
            layer.compile(backend="aot_eager")
    return model


def decoder(world: World, kind: str, valid: str, documents: bool, compiled: bool = False) -> float:
    """The loss and every gradient of a small decoder, summed over the ranks, against one device."""
    torch._dynamo.reset()
    group = group_of(world)
    batch = batch_of(valid, documents)
    model = model_of(cp.attention(kind, group), compiled)
    mine = cp.take(batch, world.size, world.rank)
    with poisoned():
        loss = _loss(model, mine)
        loss.backward()
    plain = model_of()
    wanted = _loss(plain, batch)
    wanted.backward()
    total = loss.detach().clone()
    dist.all_reduce(total, group=group)
    errors = [error(total, wanted.detach())]
    for parameter, reference in zip(model.parameters(), plain.parameters(), strict=True):
        assert parameter.grad is not None
        assert reference.grad is not None
        dist.all_reduce(parameter.grad, group=group)
        errors.append(error(parameter.grad, reference.grad) / max(1.0, float(reference.grad.abs().max())))
    return max(errors)


def _loss(model: Decoder, batch: dict[str, Tensor]) -> Tensor:
    return model(batch["tokens"], batch.get("positions"), batch.get("segments"), batch["targets"])

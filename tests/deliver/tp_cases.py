"""What the ranks of the tensor parallelism's tests run."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.compute.loss import IGNORED, linear_cross_entropy
from paceline.deliver import tp
from paceline.deliver.moves import part_of
from paceline.deliver.wire.world import World
from paceline.ledger.outcome import Refused
from tests.deliver.moves_cases import calls_of, drawn, error, group_of, poisoned

BATCH, LENGTH, WIDTH, VOCAB = 2, 8, 6, 101


def words(masked: str = "some") -> tuple[Tensor, Tensor]:
    """Tokens with every border row of the vocabulary in them, and targets of which some do not count."""
    gen = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=gen)
    tokens[0] = torch.tensor([0, 25, 26, 50, 51, 75, 76, 100])
    targets = tokens.flip(1).contiguous()
    targets[1, 2:5] = IGNORED
    if masked == "all":
        targets[:] = IGNORED
    return tokens, targets


def whole(tied: bool, cap: float | None, masked: str) -> dict[str, Tensor]:
    """Embedding, a nonlinearity, head and loss on one device."""
    table, head = drawn(VOCAB, WIDTH, seed=1).requires_grad_(), drawn(VOCAB, WIDTH, seed=2).requires_grad_()
    head = table if tied else head
    tokens, targets = words(masked)
    logits = torch.sin(F.embedding(tokens, table)) @ head.t()
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    loss.backward()
    assert table.grad is not None
    found = {"loss": loss.detach(), "table": table.grad}
    if not tied:
        assert head.grad is not None
        found["head"] = head.grad
    return found


def embed_and_predict(
    world: World, tied: bool = False, cap: float | None = None, masked: str = "some"
) -> dict[str, float]:
    """The same through the stream and the vocabulary: errors of the loss and of the rows' gradients."""
    group = group_of(world)
    stream, vocabulary = tp.stream(group), tp.vocabulary(group)
    rows = vocabulary.rows(VOCAB)
    here = slice(rows.start, rows.stop)
    table = drawn(VOCAB, WIDTH, seed=1)[here].clone().requires_grad_()
    head = table if tied else drawn(VOCAB, WIDTH, seed=2)[here].clone().requires_grad_()
    tokens, targets = words(masked)
    with poisoned():
        x = stream.spread(vocabulary.lookup(tokens, table, VOCAB))
        hidden = stream.gather(torch.sin(x))
        loss = linear_cross_entropy(hidden, head, targets, vocab_size=VOCAB, cap=cap, vocabulary=vocabulary)
        loss.backward()
    wanted = whole(tied, cap, masked)
    assert table.grad is not None
    found = {"loss": error(loss.detach(), wanted["loss"]), "table": error(table.grad, wanted["table"][here])}
    if not tied:
        assert head.grad is not None
        found["head"] = error(head.grad, wanted["head"][here])
    return found


def lookup(world: World) -> dict[str, Any]:
    """Rows that are elsewhere give exact zeros and no gradient, whatever the rows here and the gradients hold."""
    group = group_of(world)
    vocabulary = tp.vocabulary(group)
    rows = vocabulary.rows(VOCAB)
    table = torch.full((len(rows), WIDTH), torch.inf, requires_grad=True)
    tokens = torch.arange(VOCAB)[None]
    found = vocabulary.lookup(tokens, table, VOCAB)
    elsewhere = torch.ones(VOCAB, dtype=torch.bool)
    elsewhere[rows.start : rows.stop] = False
    weight = torch.ones_like(found).masked_fill(elsewhere[None, :, None], torch.nan)
    found.backward(weight)
    assert table.grad is not None
    return {
        "rows": rows,
        "zeros": bool((found[0, elsewhere] == 0).all()),
        "held": bool((found[0, ~elsewhere] == torch.inf).all()),
        "gradient": bool((table.grad == 1).all()),
    }


def parts(world: World) -> bool:
    """The stream's part of the tokens is that of the spread sum."""
    group = group_of(world)
    stream = tp.stream(group)
    tokens, _ = words()
    spread = stream.spread(tokens[..., None].double() / world.size)
    return bool(torch.equal(spread[..., 0], stream.part(tokens).double())) and bool(
        torch.equal(stream.part(tokens), part_of(tokens, 1, group))
    )


def uneven(world: World) -> str:
    try:
        tp.stream(group_of(world)).spread(drawn(1, 7, 3))
    except Refused as refused:
        return refused.use
    return ""


def traffic(world: World) -> list[tuple[str, int]]:
    """Every call of one cut sub-layer and of embedding and loss, forward and backward, with its bytes."""
    group = group_of(world)
    stream = tp.stream(group)
    calls = calls_of(world)
    x = drawn(1, 8 // world.size, WIDTH).requires_grad_()
    stream.spread(torch.tanh(stream.gather(x))).sum().backward()
    return [(row.op, row.bytes) for row in calls]

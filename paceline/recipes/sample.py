"""Text from a decoder, one token at a time: the whole window is computed anew for each (no cache of keys)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn


@torch.no_grad()
def generate(
    model: nn.Module,
    ids: Sequence[int],
    *,
    tokens: int,
    temperature: float,
    seed: int,
    window: int,
    end: int | None = None,
) -> Iterator[int]:
    """Up to ``tokens`` new token ids after ``ids``.

    Args:
        model: tokens [1, T] → logits [1, T, V].
        ids: what comes before; at least one.
        temperature: 0 takes the likeliest token, the lowest id among equals.
        seed: of the draws; the same model, ids, temperature and seed give the same text.
        window: the most tokens that the model sees at once, its training length.
        end: the id that ends a document; it ends the text and is not yielded.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    seen = list(ids)
    model.eval()
    for _ in range(tokens):
        context_BT = torch.tensor([seen[-window:]], device=device)
        choice = pick(model(context_BT)[0, -1], temperature, generator)
        if choice == end:
            return
        seen.append(choice)
        yield choice


def pick(logits_V: Tensor, temperature: float, generator: torch.Generator) -> int:
    """One id, drawn from softmax(logits / temperature) in float64 on the host."""
    scores_V = logits_V.detach().to("cpu", torch.float64)
    if temperature <= 0:
        return int(scores_V.argmax())
    odds_V = torch.softmax(scores_V / temperature, dim=-1)
    return int(torch.multinomial(odds_V, 1, generator=generator))

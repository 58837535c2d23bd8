"""Which of the ranks that hold a slice writes it: one answer for a rank that saves and for a reshard of its layout.

No torch: the ranks of a layout need not be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.recover.slices import Box, share_out


@dataclass(frozen=True)
class Holding:
    """What a rank holds of one tensor.

    Attributes:
        boxes: the blocks of the whole that are in its memory; () where the tensor has too few rows for it.
        replicas: the ranks that hold the same ones, this one among them, in order.
        item_bytes: bytes of an element.
    """

    boxes: tuple[Box, ...]
    replicas: tuple[int, ...]
    item_bytes: int


def owned(held: Mapping[str, Holding], rank: int) -> dict[str, tuple[Box, ...]]:
    """name → the boxes that this rank writes. Tensors with the same replicas are shared out together."""
    together: dict[tuple[int, ...], list[str]] = {}
    for name, holding in held.items():
        together.setdefault(holding.replicas, []).append(name)
    found: dict[str, tuple[Box, ...]] = {}
    for ranks, names in together.items():
        sizes = [(n, sum(b.numel for b in held[n].boxes) * held[n].item_bytes) for n in names]
        owner = share_out(sizes, len(ranks))
        found.update({n: held[n].boxes for n in names if held[n].boxes and ranks[owner[n]] == rank})
    return found


def key_of(name: str, number: int) -> str:
    """The key in its shard of a tensor's piece, counted from 0."""
    return name if number == 0 else f"{name}#{number}"

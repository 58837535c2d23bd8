"""What one rank writes of a state, as bytes in host memory. No torch: another process writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.recover.container import Item


@dataclass(frozen=True)
class Piece:
    """One slice to be written: the tensor it belongs to, where it starts there, and its bytes."""

    tensor: str
    starts: tuple[int, ...]
    item: Item


@dataclass(frozen=True)
class Snapshot:
    """What one rank writes of a state, in host memory: nothing in it points at a device or at a process
    group.

    ``tensors`` names every tensor that this rank holds a part of, with its global shape and dtype.
    """

    rank: int
    pieces: tuple[Piece, ...]
    tensors: dict[str, tuple[tuple[int, ...], str]]
    scalars: dict[str, Any]
    ties: dict[str, str]
    groups: list[dict[str, Any]]

    @property
    def nbytes(self) -> int:
        """Bytes of data that this rank writes."""
        return sum(piece.item.nbytes for piece in self.pieces)

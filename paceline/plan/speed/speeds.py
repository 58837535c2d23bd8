"""What the cost of a layout asks about a machine. One interface, two siblings: ``cpu.py`` and ``gpu.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from paceline.plan.model import Widths


@dataclass(frozen=True)
class Group:
    """The ranks of one collective: how many, how many of them share a host, and how far apart neighbours stand."""

    ranks: int
    on_host: int
    apart: int = 1

    @property
    def hosts(self) -> int:
        return -(-self.ranks // max(1, self.on_host))


@dataclass(frozen=True)
class Factors:
    """Parts of a step that no single operation has, over their closed forms; 1 = as those say.

    Attributes:
        recompute: of the extra compute. exposed: of communication that nothing hides. contention: of what compute
            loses beside communication that it hides. idle: of a pipeline's waiting. host: of Python's time.
    """

    recompute: float = 1.0
    exposed: float = 1.0
    contention: float = 1.0
    idle: float = 1.0
    host: float = 1.0


class Speeds(Protocol):
    """Seconds of one rank while all ``world`` ranks work at once.

    Attributes:
        precision: compute type.
        factors: of what is priced beside single operations.
        pods: whether it matters how far apart the ranks of a group stand (:mod:`paceline.plan.fabric`).
        overlaps: communication runs beside compute without taking its cores.
        base_bytes: a rank's memory before it has a model (process, or device context).
        sigma: relative error (standard deviation of the logarithm) of compute, deliver, update, host, idle, and of
            what two layouts do not share (``own``).
        assumed: what was taken from the catalogue or assumed, in the user's words.
    """

    precision: str
    factors: Factors
    overlaps: bool
    pods: bool
    base_bytes: int
    sigma: Mapping[str, float]
    assumed: tuple[str, ...]

    def peak_flops(self, world: int) -> float:
        """The rate that MFU divides by, for one rank: measured matmul peak on a CPU, dense peak on a GPU."""
        ...

    def block_s(self, kind: Widths, sequence_length: int, mbs: float, world: int, tp: int = 1) -> float:
        """Forward and backward of one layer of a kind, as tp and ep leave it to a rank, for one micro-batch.

        Args:
            mbs: rows of ``sequence_length``; under cp the rank's part of them.
            tp: ranks over which the residual stream is cut.
        """
        ...

    def outer_s(self, widths: Widths, sequence_length: int, mbs: float, world: int) -> float:
        """Forward and backward of what is outside the blocks: embedding, last norm, head, loss."""
        ...

    def optimizer_s(self, parameters: float, world: int) -> float:
        """Clip and update this many parameters of this rank."""
        ...

    def copy_s(self, size_bytes: float, world: int) -> float:
        """Read and write this many bytes in memory."""
        ...

    def collective_s(self, op: str, size_bytes: float, group: Group) -> float:
        """``all_reduce``, ``all_gather`` or ``reduce_scatter`` of a full message of ``size_bytes``.

        ``all_to_all``: what each rank sends in all, its own part included. ``send``: to one other rank.
        """
        ...

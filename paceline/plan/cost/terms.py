"""What a layout is asked to do, and what an axis adds to a step: the values that cost files pass around."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.plan.columns import Column, choose, least, most
from paceline.plan.cost.sheaf import Priced
from paceline.plan.model import COMPUTE_BYTES, MASTER_BYTES, Parameters, Widths, parameters
from paceline.plan.speed.speeds import Group

OPTIMIZER_STATES = {"adamw": 2, "sgd": 1}


@dataclass(frozen=True)
class Work:
    """The mathematics of one step: the same on every layout.

    Attributes:
        global_batch: sequences a step. reduce_bytes: of a gradient element while it is reduced.
        optimizer_states: numbers kept for each parameter, in the master type.
    """

    widths: Widths
    sequence_length: int
    global_batch: int
    precision: str
    reduce_bytes: int = 4
    optimizer_states: int = 2
    count: Parameters = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", parameters(self.widths))

    @property
    def weight_bytes(self) -> int:
        """Of a weight where it is used."""
        return COMPUTE_BYTES[self.precision]

    @property
    def master_bytes(self) -> int:
        return MASTER_BYTES[self.precision]

    @property
    def gradient_bytes(self) -> int:
        """Of a gradient element on the wire."""
        return 8 if self.precision == "fp64" else self.reduce_bytes


@dataclass(frozen=True)
class Delivered:
    """Communication of one rank in a step: seconds in all, seconds that compute does not hide, bytes sent."""

    total_s: Column = 0.0
    exposed_s: Column = 0.0
    sent_bytes: Column = 0.0
    host_s: Column = 0.0

    def __add__(self, other: Delivered) -> Delivered:
        return Delivered(
            self.total_s + other.total_s,
            self.exposed_s + other.exposed_s,
            self.sent_bytes + other.sent_bytes,
            self.host_s + other.host_s,
        )

    def where(self, condition: Column, other: Delivered | None = None) -> Delivered:
        """This where the condition holds, else ``other`` (nothing)."""
        other = other or Delivered()
        return Delivered(
            choose(condition, self.total_s, other.total_s),
            choose(condition, self.exposed_s, other.exposed_s),
            choose(condition, self.sent_bytes, other.sent_bytes),
            choose(condition, self.host_s, other.host_s),
        )

    def times(self, count: Column) -> Delivered:
        """The same, ``count`` times."""
        return Delivered(
            count * self.total_s, count * self.exposed_s, count * self.sent_bytes, count * self.host_s
        )


@dataclass(frozen=True)
class Estimate:
    """One layout's predicted step, before uncertainty; of a sheaf each figure is a column.

    Attributes:
        seconds: compute, deliver (exposed), update, host, idle (a pipeline that fills and drains); their sum
            is the step. ``hidden_s`` is communication that compute covers, ``padding_s`` the part of compute on
            rows of weight zero, ``recompute_s`` that on activations once more: none of them adds to it.
        memory: bytes by purpose, of the fullest rank.
    """

    layout: Priced
    seconds: Mapping[str, Column]
    hidden_s: Column
    padding_s: Column
    recompute_s: Column
    sent_bytes: Column
    memory: Mapping[str, float]
    allocated_bytes: Column
    reserved_bytes: Column
    device_bytes: Column

    @property
    def step_s(self) -> Column:
        return sum(self.seconds.values())


def group_of(ranks: Column, apart: Column, devices: Column) -> Group:
    """A group whose neighbours stand ``apart`` ranks apart, on hosts of ``devices``."""
    return Group(ranks, most(1, least(ranks, devices // apart)), apart)


def micro_batches(layout: Priced, global_batch: int) -> tuple[Column, Column]:
    """(rows, how many such micro-batches) of one data rank in a step, as ``compute/data/batches.py`` deals.

    All have one shape: the fewest rows that fit, at most ``mbs``.
    """
    degree = layout.data_degree
    mbs = layout.data_rows(global_batch) if layout.mbs is None else layout.mbs
    count = -(-global_batch // (degree * mbs))
    return -(-global_batch // (degree * count)), count


def padding_rows(layout: Priced, global_batch: int) -> Column:
    """Rows of weight zero in a step, over all ranks."""
    rows, count = micro_batches(layout, global_batch)
    return rows * count * layout.data_degree - global_batch

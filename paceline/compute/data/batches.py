"""Which rank computes which rows of which step, so that every layout sees the same global batches.

Step ``s`` (0 for the first) takes the positions ``s*G .. (s+1)*G`` of the order, G =
``global_batch_size``. They are dealt out in micro-batches: slot ``(k*D + r)*b + i`` is row ``i`` of
micro-batch ``k`` of data rank ``r`` of D. Every rank gets the same number of micro-batches of the same
shape; slots beyond G, and beyond the end of the data where the job counts epochs, are rows of weight zero
(targets -100), so unequal ranks neither hang nor change the mathematics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Protocol

import numpy as np

from paceline.compute.data.order import Order
from paceline.compute.data.packing import IGNORE, PackedSet, Row
from paceline.compute.data.prepared import Prepared
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many

if TYPE_CHECKING:
    from paceline.job import Job

PADDING_ROW = -1


class Rows(Protocol):
    """What batches are made of; see :class:`paceline.compute.data.packing.PackedSet`."""

    @property
    def rows(self) -> int: ...

    @property
    def sequence_length(self) -> int: ...

    @property
    def packing(self) -> str: ...

    def row(self, row: int) -> Row: ...

    def valid_tokens(self, rows: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Batch:
    """One micro-batch of b rows of T tokens.

    ``arrays``: tokens int64[b,T], targets int64[b,T]; with ``masked`` also segments and
    positions, int32[b,T].
    ``rows`` int64[b]: row numbers of the packed set, -1 for weight zero. ``positions_in_order`` int64[b]: the
    position of each row in the order, -1 likewise.
    """

    arrays: dict[str, np.ndarray]
    rows: np.ndarray
    positions_in_order: np.ndarray
    valid_tokens: int
    target_bytes: int

    @property
    def padding_rows(self) -> int:
        """Rows of weight zero."""
        return int((self.rows == PADDING_ROW).sum())


@dataclass(frozen=True)
class BatchPlan:
    """The batches of a run on one data rank.

    ``limit`` is the position where the data ends; None for a run counted in steps or tokens, which goes on
    into the next epoch. ``first_step`` and ``first_position`` move the origin, for a run resumed with another
    batch size: the loader's whole state is ``position_of(step)``.

    Raises:
        Refused: 20 when there are fewer rows than data ranks; 2 for sizes below one.
    """

    packed: Rows
    order: Order
    global_batch_size: int
    data_rank: int = 0
    data_degree: int = 1
    micro_batch_size: int | None = None
    limit: int | None = None
    first_step: int = 0
    first_position: int = 0
    _deal: _Deal = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_ranks(self.packed, self.data_degree)
        deal = _Deal.of(self.global_batch_size, self.data_rank, self.data_degree, self.micro_batch_size)
        object.__setattr__(self, "_deal", deal)

    @property
    def micro_batches_per_step(self) -> int:
        """The same on every rank and in every step."""
        return self._deal.count

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, tokens) of every micro-batch; the fewest rows that fit, at most ``micro_batch_size``."""
        return self._deal.rows, self.packed.sequence_length

    @property
    def padding_rows_per_step(self) -> int:
        """Rows of weight zero in a full step, over all ranks: the price of a batch that does not divide."""
        return self._deal.count * self._deal.rows * self.data_degree - self.global_batch_size

    def position_of(self, step: int) -> int:
        """Rows used before ``step``: the loader's whole state."""
        return self.first_position + (step - self.first_step) * self.global_batch_size

    def micro_batches(self, step: int) -> list[Batch]:
        """What this rank computes in ``step`` (the number of finished steps before it)."""
        return list(self.iterate(step))

    def iterate(self, step: int) -> Iterator[Batch]:
        """As :meth:`micro_batches`, one at a time."""
        for number in range(self._deal.count):
            yield _batch(self.packed, *self._place(step, self._deal.of_number(number)))

    def _place(self, step: int, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        positions = self.position_of(step) + slots
        used = slots < self.global_batch_size
        if self.limit is not None:
            used &= positions < self.limit
        rows = np.full(slots.size, PADDING_ROW, np.int64)
        if used.any():
            rows[used] = self.order.rows_at(positions[used])
        return rows, np.where(used, positions, -1)

    def global_rows(self, step: int) -> np.ndarray:
        """int64[<= G]: the rows of the whole global batch in global order, without the weight-zero ones."""
        rows, _ = self._place(step, np.arange(self.global_batch_size))
        return rows[rows != PADDING_ROW]

    def global_valid_tokens(self, step: int) -> int:
        """The loss's divisor: valid targets of the whole global batch, known on every rank without asking."""
        return int(self.packed.valid_tokens(self.global_rows(step)).sum())


@dataclass(frozen=True)
class _Deal:
    """``count`` micro-batches of ``rows`` slots for one rank."""

    count: int
    rows: int
    rank: int
    degree: int

    @classmethod
    def of(cls, total: int, rank: int, degree: int, micro_batch_size: int | None) -> _Deal:
        wanted = micro_batch_size if micro_batch_size is not None else ceil(total / max(1, degree))
        if min(total, degree, wanted) < 1 or not 0 <= rank < degree:
            raise Refused(
                "a batch cannot be dealt out",
                exit_code=Exit.USAGE,
                key="train.global_batch_size",
                seen=f"{many(total, 'sequence')}, micro-batch {wanted}, data rank {rank} of {degree}",
                rule="batch, micro-batch and data ranks are at least 1",
                use="train.global_batch_size = 32",
            )
        count = ceil(total / (degree * wanted))
        return cls(count, ceil(total / (degree * count)), rank, degree)

    def of_number(self, number: int) -> np.ndarray:
        return (number * self.degree + self.rank) * self.rows + np.arange(self.rows)


def eval_batches(
    packed: PackedSet,
    data_rank: int = 0,
    data_degree: int = 1,
    micro_batch_size: int = 1,
    limit: int | None = None,
) -> Iterator[Batch]:
    """The rows of an evaluation in fixed order, each on exactly one rank; equal shapes on every rank.

    Args:
        limit: at most so many rows, evenly spread over the set; None for all.
    """
    total = packed.rows if limit is None else min(limit, packed.rows)
    deal = _Deal.of(total, data_rank, data_degree, micro_batch_size)
    for number in range(deal.count):
        slots = deal.of_number(number)
        used = slots < total
        rows = np.where(used, slots * packed.rows // total, PADDING_ROW)
        yield _batch(packed, rows, np.where(used, slots, -1))


def _batch(packed: Rows, rows: np.ndarray, positions: np.ndarray) -> Batch:
    shape = (rows.size, packed.sequence_length)
    arrays = {"tokens": np.zeros(shape, np.int64), "targets": np.full(shape, IGNORE, np.int64)}
    if packed.packing == "masked":
        arrays["segments"] = np.zeros(shape, np.int32)
        arrays["positions"] = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
    target_bytes = 0
    for at, number in enumerate(rows.tolist()):
        if number == PADDING_ROW:
            continue
        row = packed.row(number)
        arrays["tokens"][at], arrays["targets"][at] = row.tokens, row.targets
        if row.segments is not None and row.positions is not None:
            arrays["segments"][at], arrays["positions"][at] = row.segments, row.positions
        target_bytes += row.target_bytes
    valid = int((arrays["targets"] != IGNORE).sum())
    return Batch(arrays, rows, positions, valid, target_bytes)


def check_ranks(packed: Rows, data_degree: int) -> None:
    """Refuses(20) a layout with more data ranks than there are rows to train on."""
    if packed.rows >= data_degree:
        return
    raise Refused(
        "there are fewer sequences than data ranks",
        exit_code=Exit.DATA,
        key="data.train",
        seen=f"{many(packed.rows, 'sequence')} of {packed.sequence_length} tokens; {many(data_degree, 'data rank')}",
        rule="every data rank has at least one sequence of its own",
        allowed=f"at most {many(packed.rows, 'data rank')}",
        use=f"--layout dp={packed.rows}, or more data, or a smaller data.sequence_length",
    )


def refuse_before_start(job: Job, prepared: Prepared, data_degree: int) -> int:
    """Everything about the data that can be refused without a rank process; the steps of the run.

    Raises:
        Refused: 20 when train or eval is too small for a sequence, or train for so many data ranks.
    """
    train, held_out = (
        PackedSet(prepared, split, job.data.sequence_length, job.data.packing) for split in ("train", "eval")
    )
    check_ranks(train, data_degree)
    assert held_out.rows > 0
    return total_steps(job, train)


def data_limit(job: Job, packed: PackedSet) -> int | None:
    """Where a run counted in epochs ends, as a position; None where it is counted in steps or tokens."""
    train = job.train
    if train.steps is not None or train.tokens is not None:
        return None
    epochs = 1.0 if train.epochs is None else float(train.epochs)
    return max(1, ceil(round(epochs * packed.rows, 6)))


def total_steps(job: Job, packed: PackedSet) -> int:
    """Optimizer steps of the run: ``train.steps``, or what epochs or tokens need (the last may be part)."""
    train = job.train
    if train.steps is not None:
        return int(train.steps)
    batch = int(train.global_batch_size)
    if train.tokens is not None:
        return max(1, ceil(int(train.tokens) / (batch * packed.sequence_length)))
    limit = data_limit(job, packed)
    assert limit is not None
    return ceil(limit / batch)

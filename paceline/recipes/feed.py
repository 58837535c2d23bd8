"""Prepared tokens → this rank's batches on its device, with the counts that the step's first reduction carries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np
import torch
from torch import Tensor

from paceline.compute.data.batches import BatchPlan, data_limit, eval_batches, total_steps
from paceline.compute.data.order import Order
from paceline.compute.data.packing import PackedSet
from paceline.compute.data.prepared import Prepared
from paceline.deliver import cp
from paceline.deliver.device import Device
from paceline.deliver.mesh import Mesh
from paceline.job import Job
from paceline.update.every_step import Counts

MicroBatch = dict[str, Tensor]


def to_device(arrays: Mapping[str, np.ndarray], device: Device) -> MicroBatch:
    """One micro-batch: int64 tokens and targets [B, T], and segments, positions where documents are kept apart."""
    return {name: device.from_host(torch.from_numpy(array)) for name, array in arrays.items()}


class Feed:
    """This rank's share of every global batch: a pure function of the step.

    Args:
        job: data and batch sizes.
        prepared: tokens.
        mesh: which share is this rank's.
        device: where the tensors go.
        micro_batch_size: sequences, of the layout; None = the whole share at once.
    """

    def __init__(
        self, job: Job, prepared: Prepared, mesh: Mesh, device: Device, micro_batch_size: int | None
    ) -> None:
        self._device, self._mesh = device, mesh
        self.train = PackedSet(prepared, "train", job.data.sequence_length, job.data.packing)
        self.held_out = PackedSet(prepared, "eval", job.data.sequence_length, job.data.packing)
        self.micro_batch_size = micro_batch_size or -(-job.train.global_batch_size // mesh.data_degree)
        self.plan = BatchPlan(
            self.train,
            Order(job.train.seed, self.train.rows, self.train.groups),
            job.train.global_batch_size,
            mesh.data_rank,
            mesh.data_degree,
            micro_batch_size,
            data_limit(job, self.train),
        )
        self._job = job
        self.steps = total_steps(job, self.train)

    @property
    def steps_per_epoch(self) -> float:
        """Optimizer steps that use every row once."""
        return self.train.rows / self._job.train.global_batch_size

    def start_at(self, step: int, position: int) -> None:
        """Go on after ``step`` finished steps that used ``position`` rows, whatever the batch size was then."""
        batch = self._job.train.global_batch_size
        if position == step * batch:
            return
        self.plan = replace(self.plan, first_step=step, first_position=position)
        train = self._job.train
        if train.steps is None:
            rows = self.plan.limit
            if rows is None:
                rows = ceil(int(train.tokens or 0) / self.train.sequence_length)
            self.steps = step + max(0, ceil((rows - position) / batch))

    def __call__(self, step: int) -> tuple[Sequence[MicroBatch], Counts]:
        """Micro-batches and counts of optimizer step ``step``, from 1."""
        share = self.plan.micro_batches(step - 1)
        counts = Counts(
            valid_tokens=float(sum(b.valid_tokens for b in share)),
            target_bytes=float(sum(b.target_bytes for b in share)),
            rows=float(sum(len(b.rows) - b.padding_rows for b in share)),
        )
        return [self._here(b.arrays) for b in share], counts

    def _here(self, arrays: Mapping[str, np.ndarray]) -> MicroBatch:
        """On the device, and of a context shard its own part of each sequence."""
        batch = to_device(arrays, self._device)
        degree = self._mesh.layout.cp
        return batch if degree == 1 else cp.take(batch, degree, self._mesh.at["cp"])

    def evaluation(self, limit: int | None) -> Iterator[tuple[MicroBatch, int]]:
        """This rank's held-out micro-batches with the bytes of text in their targets; ``limit`` rows over all ranks."""
        for batch in eval_batches(
            self.held_out, self._mesh.data_rank, self._mesh.data_degree, self.micro_batch_size, limit
        ):
            yield self._here(batch.arrays), batch.target_bytes

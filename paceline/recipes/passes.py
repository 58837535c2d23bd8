"""The passes of a pipelined rank: a runtime for each shape of step that it meets, made when it is first needed.

The runtime has static buffers for a number of micro-batches of one shape (``update/pipeline``), and both are known
with the first batch only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.deliver.delivery import Delivery, Precision
from paceline.deliver.device import Device
from paceline.deliver.mesh import Mesh
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import Ledger
from paceline.update.pipeline.runtime import Pipelined

MicroBatch = Mapping[str, Tensor]


@dataclass
class Pipeline:
    """See :class:`paceline.update.passes.Passes`."""

    delivery: Delivery
    numbers: Sequence[int]
    mesh: Mesh
    device: Device
    precision: Precision
    widths: ModelWidths
    ledger: Ledger
    _made: dict[tuple[int, torch.Size], Pipelined] = field(default_factory=dict)

    def forward_backward(self, micro_batches: Sequence[MicroBatch], divisor: Tensor) -> Tensor:
        """Through the schedule; Σ loss where the last stage is, else zero.

        What the schedule itself takes between its actions is an update's second: it decides when.
        """
        with self.ledger.span("update", "schedule"):
            runtime = self._runtime(len(micro_batches), micro_batches[0])
            return runtime.forward_backward(micro_batches, divisor)

    def forward_only(self, batch: MicroBatch) -> Tensor:
        """One micro-batch through all stages, without gradients."""
        # evaluation has one span around it
        return self._runtime(self._any_count(), batch).forward_only(batch)

    def _any_count(self) -> int:
        """Evaluation takes one micro-batch at a time, so a runtime for any number of them serves."""
        return next((count for count, _ in self._made), max(2 * self.mesh.layout.stages, 2))

    def _runtime(self, count: int, batch: MicroBatch) -> Pipelined:
        shape = batch["tokens"].shape
        if (count, shape) not in self._made:
            group = self.mesh.group("pp")
            assert group is not None
            rows, tokens = shape
            self._made[count, shape] = Pipelined(
                list(self.delivery.modules),
                list(self.numbers),
                self.mesh.layout,
                group,
                self.device.torch,
                count,
                (rows, tokens // self.mesh.layout.tp, self.widths.hidden_size),
                self.precision.compute,
                self.ledger,
            )
        return self._made[count, shape]

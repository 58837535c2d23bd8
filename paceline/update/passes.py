"""Forward and backward of a step's micro-batches, one after the other; a pipeline has its own way (``pipeline/``).

Both hand back the same thing: gradients of the global mean loss in ``.grad``, and the sum of the loss here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.compute.step import micro_batch_loss
from paceline.deliver.delivery import Delivery
from paceline.ledger.spans import Ledger

MicroBatch = Mapping[str, Tensor]


class Passes(Protocol):
    """How micro-batches go forward and back."""

    def forward_backward(self, micro_batches: Sequence[MicroBatch], divisor: Tensor) -> Tensor:
        """Add the gradients of Σ loss / ``divisor`` to ``.grad``; Σ loss of this rank, nats, float64 scalar."""
        ...

    def forward_only(self, batch: MicroBatch) -> Tensor:
        """Σ loss of one micro-batch on this rank, without gradients; zero where another stage has it."""
        ...


@dataclass(frozen=True)
class InTurn:
    """One micro-batch after the other through the whole model."""

    delivery: Delivery
    ledger: Ledger

    def forward_backward(self, micro_batches: Sequence[MicroBatch], divisor: Tensor) -> Tensor:
        """See :class:`Passes`; every second is booked to forward, backward or set-up."""
        with self.ledger.span("compute", "forward"):
            loss_sum = torch.zeros((), dtype=torch.float64, device=divisor.device)
        last = len(micro_batches) - 1
        for i, batch in enumerate(micro_batches):
            with self.ledger.span("deliver", "set-up"):
                self.delivery.before(i == 0, i == last)
            with self.ledger.span("compute", "forward"):
                loss = micro_batch_loss(self.delivery.module, batch)
                loss_sum += loss.detach()
            with self.ledger.span("compute", "backward"):
                (loss / divisor.to(loss.dtype)).backward()
                del loss  # freeing what the graph held is part of the backward, and takes its time
        return loss_sum

    def forward_only(self, batch: MicroBatch) -> Tensor:
        """See :class:`Passes`; the bare model is called, since no gradient will be delivered."""
        return micro_batch_loss(self.delivery.model, batch)

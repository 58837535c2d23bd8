"""The update policy ``every_step``: all gradients of the global batch become one change of the weights.

Two reductions a step carry all that ranks must agree on. The first, before any forward, counts the valid tokens of
the global batch, by which each micro-batch's loss sum is divided: exactly once, on every layout. The second,
after the last backward, carries the square of the gradient norm, the loss, and what rank 0 decided by its clock
or was told from outside, so that every rank clips, stops, evaluates and saves at the same step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.compute.optim import set_learning_rate
from paceline.compute.step import micro_batch_loss
from paceline.deliver.delivery import Delivery
from paceline.deliver.device import Device
from paceline.deliver.mesh import Mesh
from paceline.ledger.spans import Ledger
from paceline.update.clip import local_square_sum, scale_gradients
from paceline.update.controls import Verdict, judge


@dataclass(frozen=True)
class Counts:
    """What one rank, or after the reduction all ranks, bring to a step."""

    valid_tokens: float
    target_bytes: float
    rows: float


@dataclass(frozen=True)
class StepResult:
    """One optimizer step as every rank knows it.

    ``loss`` is nats per valid target token of the global batch, ``grad_norm`` before clipping; ``carried`` is the
    sum over ranks of what the caller sent along with the first reduction, ``decisions`` of the second.
    """

    loss: float
    grad_norm: float
    counts: Counts
    carried: tuple[float, ...]
    decisions: tuple[float, ...]
    verdict: Verdict | None


@dataclass
class EveryStep:
    """Everything that a step touches, assembled by ``recipes``."""

    delivery: Delivery
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    mesh: Mesh
    device: Device
    ledger: Ledger
    max_grad_norm: float

    def step(
        self,
        micro_batches: Sequence[Mapping[str, Tensor]],
        local: Counts,
        rate: float,
        carried: Sequence[float] = (),
        decisions: Sequence[float] = (),
    ) -> StepResult:
        """Run one optimizer step.

        Args:
            micro_batches: this rank's share of the global batch; the same number, of the same shapes, on every rank.
            local: what this rank's share counts.
            rate: learning rate of this step.
            carried: numbers to sum over ranks with the first reduction.
            decisions: numbers to sum over ranks with the second; only rank 0 sends other than zero.

        Returns:
            The step's result; when its ``verdict`` says stop, the weights have not been touched.
        """
        with self.ledger.span("update", "counts"):
            totals = self._vector((local.valid_tokens, local.target_bytes, local.rows, *carried))
        self.mesh.sum(totals)
        loss_sum = self._forward_backward(micro_batches, totals[0])
        with self.ledger.span("update", "norm"):
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            squares = local_square_sum(gradients, self.mesh.world_size).to(loss_sum.device)
            second = torch.cat((torch.stack((squares, loss_sum)), self._vector(decisions)))
        self.mesh.sum(second)
        with self.ledger.span("update", "norm"):
            square_sum, loss_total, *decided = second.tolist()
            valid, target_bytes, rows, *rest = totals.tolist()
            loss, norm = loss_total / max(valid, 1.0), math.sqrt(square_sum)
            verdict = judge(loss, norm)
        with self.ledger.span("update", "optimizer"):
            if verdict is None:
                scale_gradients(gradients, norm, self.max_grad_norm)
                set_learning_rate(self.optimizer, rate)
                self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            del gradients  # freed here, where its time is booked
            return StepResult(
                loss, norm, Counts(valid, target_bytes, rows), tuple(rest), tuple(decided), verdict
            )

    def _forward_backward(
        self, micro_batches: Sequence[Mapping[str, Tensor]], valid_tokens: Tensor
    ) -> Tensor:
        """Gradients of the global mean loss, summed over micro-batches and ranks; returns Σ loss here, float64."""
        with self.ledger.span("compute", "forward"):
            divisor = valid_tokens.clamp(min=1.0)
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

    def _vector(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(self.device.torch)

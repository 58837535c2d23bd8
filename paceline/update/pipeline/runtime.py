"""The forward and backward of a step over a pipeline, on the schedules of ``torch.distributed.pipelining``.

Title of the hard why: *scaled once*. The last stage's loss is a sum over tokens; it is divided by the count of the
global batch where it enters the backward, and nowhere else: ``scale_grads=False``, or torch would divide what is in
``p.grad`` by the micro-batches of each call, what earlier calls left there included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import schedules

from paceline.ledger.spans import Ledger
from paceline.plan.layout import Layout
from paceline.plan.pipeline.counts import refuses
from paceline.plan.pipeline.orders import splits
from paceline.update.pipeline.forward import forward_only
from paceline.update.pipeline.shards import Shards
from paceline.update.pipeline.stages import Stage, Stream, accounts

SCHEDULES: dict[str, Callable[..., Any]] = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zero-bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}
ONE_STAGE = ("gpipe", "1f1b")


class Pipelined:
    """The stages of one rank, ready to run steps.

    Args:
        stages: this rank's modules, in the order of ``stage_numbers`` (ascending). Each is called as
            ``module(x, targets=…)``, with positions and segments where the batch has them; x is tokens [B, T] for
            stage 0, else the stream. The last returns the loss sum, a scalar; the others the stream.
        stage_numbers: which stages these are: ``[s for s in range(layout.stages) if layout.stage_rank(s) == at]``.
        group: the ranks of the pipeline, in the order of their ``pp`` coordinate.
        micro_batches: of each call of :meth:`forward_backward`.
        stream_shape: [B, P, D] of one micro-batch between stages; dtype: its type.
        ledger: gets the spans ``compute/forward``, ``compute/backward``, and ``update/schedule`` around them.

    Raises:
        ValueError: a number of micro-batches that the schedule does not take; stages that are not this rank's.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        stage_numbers: Sequence[int],
        layout: Layout,
        group: dist.ProcessGroup,
        device: torch.device,
        micro_batches: int,
        stream_shape: Sequence[int],
        dtype: torch.dtype,
        ledger: Ledger | None = None,
    ) -> None:
        why = refuses(layout, micro_batches)
        here = dist.get_rank(group)
        mine = [stage for stage in range(layout.stages) if layout.stage_rank(stage) == here]
        if why is not None:
            raise ValueError(why)
        if list(stage_numbers) != mine or len(stages) != len(mine):
            raise ValueError(f"rank {here} of {layout} holds the stages {mine}, not {list(stage_numbers)}")
        self.layout, self.group, self.micro_batches = layout, group, micro_batches
        self.stages = list(zip(mine, stages, strict=True))
        self.stream = Stream(tuple(stream_shape), dtype, device)
        self._account = accounts(ledger)
        self._schedule: Any = None
        self._made: list[Stage] = []
        self._divisor = torch.ones((), device=device)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)

    def forward_backward(self, micro_batches: Sequence[Mapping[str, Tensor]], divisor: Tensor) -> Tensor:
        """Adds the gradients of Σ loss / divisor to ``p.grad`` of this rank's stages.

        Args:
            micro_batches: ``tokens`` and ``targets`` [B, T], ``positions`` and ``segments`` where there are any; all
                of one shape, the same on every rank of the pipeline.
            divisor: valid tokens of the global batch.

        Returns:
            Σ loss, float64: the undivided loss sum; zero on a rank without the last stage.
        """
        if len(micro_batches) != self.micro_batches:
            raise ValueError(f"{len(micro_batches)} micro-batches for a schedule of {self.micro_batches}")
        if self._schedule is None:
            self._schedule = self._make_schedule(micro_batches[0]["tokens"])
        self._divisor = divisor
        self._loss_sum = torch.zeros_like(self._loss_sum)
        whole = {name: torch.cat([batch[name] for batch in micro_batches]) for name in micro_batches[0]}
        tokens = whole.pop("tokens")
        first = (tokens,) if self.stages[0][0] == 0 else ()
        # targets go to the module, which has the loss; torch only asks that there is one for each micro-batch
        with self._account("update", "schedule"):
            self._schedule.step(*first, target=torch.zeros(self.micro_batches), return_outputs=False, **whole)
            for stage in self._made:
                stage.finish_sends()
        return self._loss_sum

    def forward_only(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The loss sum of one batch without gradients, float64; zero on a rank without the last stage."""
        of, owner = self.layout.stages, self.layout.stage_rank
        return forward_only(self.stages, of, owner, self.stream, self.group, batch, self._account)

    def _make_schedule(self, tokens: Tensor) -> Any:
        layout, schedule = self.layout, self.layout.schedule
        made = self._made = [
            Stage(
                module,
                number,
                layout.stages,
                layout.stage_rank,
                self.stream,
                tokens,
                self.group,
                Shards(module, layout.zero, splits(layout)),
                self._account,
            )
            for number, module in self.stages
        ]
        given = made[0] if schedule in ONE_STAGE else made
        return SCHEDULES[schedule](given, self.micro_batches, loss_fn=self._divided, scale_grads=False)

    def _divided(self, loss_sum: Tensor, _: Tensor) -> Tensor:
        self._loss_sum += loss_sum.detach()
        return loss_sum / self._divisor.to(loss_sum.dtype)

"""One stage of a pipeline as torch's runtime sees it: static shapes, accounts, causes, and our own gradient sync.

Title of the hard why: *no shape is exchanged*. Without the shapes of what a stage takes and gives, torch sends them
from stage to stage as pickled objects, and runs the first micro-batch twice. Every micro-batch has one shape here,
so both are given.

Title of another: *a buffer lives as long as its micro-batch*. torch keeps one receive buffer for each micro-batch
and direction over the whole run. Here they are made when a receive is posted and let go after the backward.

Title of a third: *a send is not waited for in front of a receive*. gloo's send stands until the other side has
posted its receive. torch's 1f1b waits for a send and a receive in turn, so the time in which the neighbour computes
would be booked to the send. On the CPU a send leaves at once and is waited for ``pp`` sends later, or at the end of
the step. (On CUDA a wait holds up no host, and sends stay batched with receives, or NCCL would deadlock.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from paceline.deliver.wire.group import Wire
from paceline.ledger.spans import Ledger
from paceline.update.pipeline.shards import Shards

Account = Callable[[str, str], AbstractContextManager[object]]


def accounts(ledger: Ledger | None) -> Account:
    """Spans by phase and reason; nothing without a ledger."""
    return ledger.span if ledger is not None else lambda phase, reason: nullcontext()


@dataclass(frozen=True)
class Stream:
    """What runs between stages: the residual stream of one micro-batch, [B, P, D]."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> Tensor:
        """Room for one micro-batch."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)

    def like(self, *shape: int) -> Tensor:
        """A shape of this type, as something that a gradient comes back for."""
        return torch.empty(shape, dtype=self.dtype, device="meta", requires_grad=True)


class Opaque(nn.Module):
    """Hides a stage from torch's runtime, which would set the switches of FSDP2 itself."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, **batch: Tensor) -> Tensor:
        found: Tensor = self.module(x, **batch)
        return found


class Stage(PipelineStage):
    """A stage that this rank holds.

    Args:
        module: called as ``module(x, positions=…, segments=…, targets=…)``; the last stage's gives the loss sum.
        number, of: which stage, and how many there are.
        owner: stage → rank of ``group``.
        tokens: the first stage's input, for its shape.
        account: opens a span of the ledger.
    """

    def __init__(
        self,
        module: nn.Module,
        number: int,
        of: int,
        owner: Callable[[int], int],
        stream: Stream,
        tokens: Tensor,
        group: dist.ProcessGroup,
        shards: Shards,
        account: Account,
    ) -> None:
        if isinstance(module, DistributedDataParallel):
            raise TypeError(
                "DistributedDataParallel cannot run several forwards ahead: sum over dp after the step"
            )
        takes = torch.empty_like(tokens, device="meta") if number == 0 else stream.like(*stream.shape)
        gives = stream.like() if number == of - 1 else stream.like(*stream.shape)
        super().__init__(
            Opaque(module), number, of, stream.device, input_args=takes, output_args=gives, group=group
        )
        self.owner, self.stream, self.shards, self.account = owner, stream, shards, account
        self._under_way: deque[dist.Work] = deque()
        self._backwards = 0

    # What it waits for

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        super()._setup_forward_recv_info(num_microbatches, has_backward)
        for infos in self.args_recv_info.values():
            _release(infos)

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        super()._setup_backward_recv_info(num_microbatches)
        for infos in self.grad_recv_info.values():
            _release(infos)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        self._expect(
            self.stage_index - 1, f"{self.stage_index - 1}F{fwd_chunk_id}", self.args_recv_info[fwd_chunk_id]
        )
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        self._expect(
            self.stage_index + 1, f"{self.stage_index + 1}B{bwd_chunk_id}", self.grad_recv_info[bwd_chunk_id]
        )
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def _expect(self, stage: int, cause: str, infos: tuple[Any, ...]) -> None:
        """Makes room for what ``stage`` will send, and tells the wire what a receive will wait for."""
        for info in infos:
            if info.is_root_arg:
                continue
            info.buffer = self.stream.empty()
            if isinstance(self.group, Wire):
                self.group.record.expect(f"{self.owner(stage)}>{self.group_rank}", cause)

    # What it sends

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._send(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._send(super().get_bwd_send_ops(bwd_chunk_id))

    def _send(self, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        if self.stream.device.type != "cpu":
            return ops
        for op in ops:
            work = dist.isend(op.tensor, group=op.group, tag=op.tag, group_dst=op.group_peer)
            if work is not None:
                self._under_way.append(work)
        self.finish_sends(keep=2 * self.group_size)  # there and back
        return []

    def finish_sends(self, keep: int = 0) -> None:
        """Waits for all sends but the last ``keep``."""
        while len(self._under_way) > keep:
            self._under_way.popleft().wait()

    # What it does

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self.account("compute", "forward"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        with self.account("compute", "backward"):
            if (
                not self.shards.split
            ):  # whole where the schedule has I: plan/pipeline/orders.py says when and why
                full_backward, last_backward = True, self._is_last()
            last = full_backward and last_backward
            self.shards.before_backward(last)
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last)
            if full_backward:
                self.shards.after_backward(last)
            _release(self.args_recv_info[bwd_chunk_id])
            _release(self.grad_recv_info[bwd_chunk_id])

    def _is_last(self) -> bool:
        self._backwards += 1
        if self._backwards < (self.chunks or 0):
            return False
        self._backwards = 0
        return True

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        if not self.shards.split:
            return
        with self.account("compute", "backward"):
            self.shards.before_backward(last_backward)
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
            self.shards.after_backward(last_backward)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Done already, after the backwards: ``shards``."""


def _release(infos: tuple[Any, ...]) -> None:
    for info in infos:
        if not info.is_root_arg:
            info.buffer = None

"""Evaluation over a pipeline: one micro-batch at a time, forward only, stage by stage in the order of their numbers.

torch's schedules can only evaluate whole steps of the training's shape and count; an evaluation has batches of its
own. A rank that holds several stages meets the micro-batch several times, and never twice at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.deliver.wire.group import Wire
from paceline.update.pipeline.stages import Account, Stream


def forward_only(
    stages: Sequence[tuple[int, nn.Module]],
    of: int,
    owner: Callable[[int], int],
    stream: Stream,
    group: dist.ProcessGroup,
    batch: Mapping[str, Tensor],
    account: Account,
) -> Tensor:
    """The loss sum of ``batch`` (float64), zero on a rank without the last stage.

    Args:
        stages: this rank's, as (number, module). of: stages in all. owner: stage → rank of ``group``.
        stream: of a training micro-batch; the batch's rows may be other in number.
        batch: tokens, targets, and positions and segments where there are any.
    """
    here = dist.get_rank(group)
    shape = (batch["tokens"].shape[0], *stream.shape[1:])
    rest = {name: value for name, value in batch.items() if name != "tokens"}
    total = torch.zeros((), dtype=torch.float64, device=stream.device)
    x = batch["tokens"]
    with torch.no_grad():
        for number, module in stages:
            if number > 0 and owner(number - 1) != here:
                x = torch.empty(shape, dtype=stream.dtype, device=stream.device)
                _receive(x, owner(number - 1), number - 1, group)
            with account("compute", "forward"):
                x = module(x, **rest)
            if number == of - 1:
                total += x
            elif owner(number + 1) != here:
                dist.send(x.contiguous(), group=group, group_dst=owner(number + 1))
    return total


def _receive(x: Tensor, source: int, stage: int, group: dist.ProcessGroup) -> None:
    if isinstance(group, Wire):
        group.record.expect(f"{source}>{dist.get_rank(group)}", f"{stage}F of an evaluation")
    dist.recv(x, group=group, group_src=source)

"""Gradients that are still partial sums when the backward is over, summed: one message per bucket.

What DDP and FSDP2 do not add up is added here: over tp and cp for weights that every rank holds whole, over the
ranks with the same experts, over the stages of a tied weight, and over dp where neither of the two wraps the model.
A gradient that no rank has stays absent, so that an optimizer leaves an unused weight alone on every layout; one
that some ranks lack counts as zero there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.deliver.held import Held
from paceline.deliver.mesh import Mesh, Ranks

BUCKET_BYTES = 64 << 20


@dataclass(frozen=True)
class _Bucket:
    """Parameters whose gradients travel together. ``group`` is theirs to sum over."""

    parameters: tuple[nn.Parameter, ...]
    group: dist.ProcessGroup
    reduce: torch.dtype


def summation(
    named: Sequence[tuple[str, nn.Parameter]], held: dict[str, Held], mesh: Mesh, reduce: torch.dtype
) -> Callable[[], None]:
    """What sums the gradients that are still partial, in place; call it on every rank after the last backward.

    Args:
        named: the rank's parameters, in an order that all ranks of a group share.
        held: whom each is to be summed over.
        reduce: dtype of the sum where that is narrower than the gradient.
    """
    by_ranks: dict[tuple[Ranks, torch.dtype], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in named:
        ranks = held[name].to_sum
        if len(ranks) > 1:
            by_ranks.setdefault((ranks, parameter.dtype), []).append((name, parameter))
    buckets: list[_Bucket] = []
    # Groups are made in one order on all ranks; two ranks share a set of ranks or do not meet in it at all.
    for ranks, dtype in sorted(by_ranks, key=lambda key: (len(key[0]), key[0], str(key[1]))):
        group = mesh.group_of(ranks, label(mesh, ranks))
        assert group is not None
        narrow = reduce if reduce.itemsize < dtype.itemsize else dtype
        parts = _split([p for _, p in sorted(by_ranks[ranks, dtype], key=lambda item: item[0])])
        buckets.extend(_Bucket(tuple(part), group, narrow) for part in parts)

    def run() -> None:
        pending = [(bucket, *_launch(bucket)) for bucket in buckets]
        for bucket, flat, work in pending:
            work.wait()
            _land(bucket, flat)

    return run


def label(mesh: Mesh, ranks: Ranks) -> str:
    """The axes along which a set of ranks differs, ``dp+tp``: under that name its seconds are booked."""
    places = [mesh.layout.coordinates(rank) for rank in ranks]
    return "+".join(a for a in ("dp", "fsdp", "cp", "tp", "pp") if len({at[a] for at in places}) > 1)


def _split(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    parts: list[list[nn.Parameter]] = [[]]
    size = 0
    for parameter in parameters:
        nbytes = _local(parameter).nbytes
        if parts[-1] and size + nbytes > BUCKET_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(parameter)
        size += nbytes
    return parts


def _launch(bucket: _Bucket) -> tuple[Tensor, dist.Work]:
    """One flat message: every gradient, and one flag each that says whether it is there."""
    parts: list[Tensor] = []
    flags: list[float] = []
    for parameter in bucket.parameters:
        grad = parameter.grad
        shard = _local(parameter)
        parts.append(torch.zeros_like(shard).view(-1) if grad is None else _local(grad).reshape(-1))
        flags.append(0.0 if grad is None else 1.0)
    parts.append(torch.tensor(flags, dtype=parts[0].dtype, device=parts[0].device))
    flat = torch.cat(parts).to(bucket.reduce)
    work = dist.all_reduce(flat, group=bucket.group, async_op=True)
    assert work is not None
    return flat, work


def _land(bucket: _Bucket, flat: Tensor) -> None:
    count = len(bucket.parameters)
    present = flat[-count:].tolist()
    at = 0
    for parameter, there in zip(bucket.parameters, present, strict=True):
        shard = _local(parameter)
        piece = flat[at : at + shard.numel()].view(shard.shape)
        at += shard.numel()
        if not there:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        _local(parameter.grad).copy_(piece)


def _local(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

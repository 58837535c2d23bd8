"""Data parallelism by replication: torch's DistributedDataParallel, gradients summed and never averaged.

Why find_unused_parameters=True: without it DDP rebuilds its buckets after the first step, so the first step
after a resume sums in another order and is not bit-identical from three ranks on. The switch keeps the buckets
as they were built, at no measurable cost.

Why our own communication hook: it sums (the loss is already divided by the global token count), and it waits
for its buckets in Python when the last one is launched, where nothing is left to compute, so that the wire sees
and books the wait. DDP's own wait is in C++, where no account is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from paceline.deliver.delivery import Delivery, Part, Precision
from paceline.deliver.mesh import Mesh

Hook = Callable[[object, dist.GradBucket], Future[Tensor]]


def apply(parts: Sequence[Part], mesh: Mesh, precision: Precision) -> Delivery:
    """Replicate the one part's model over the dp axis.

    Every replica fills itself with the same bits (``compute/init.py``), so nothing is broadcast. Units are not used:
    a replica is whole. With any axis beside dp the replicas are summed by ``sums.py`` instead: DDP knows nothing of
    stages, of experts with another group, or of a schedule that splits the backward.
    """
    (part,) = parts
    model, group = part.model, mesh.group("dp")
    assert group is not None
    module = DistributedDataParallel(
        model,
        process_group=group,
        init_sync=False,
        find_unused_parameters=True,
        gradient_as_bucket_view=True,
    )
    module.register_comm_hook(None, _sum_hook(group, precision.reduce))

    def before(first: bool, last: bool) -> None:
        module.require_backward_grad_sync = last  # what no_sync() does, without a context around the step

    return Delivery([model], [module], before)


def _sum_hook(group: dist.ProcessGroup, reduce: torch.dtype) -> Hook:
    """Sum each bucket over ``group`` in ``reduce`` where that is narrower than the gradient."""
    launched: list[tuple[dist.Work, Future[Tensor], Tensor, Tensor]] = []

    def hook(_: object, bucket: dist.GradBucket) -> Future[Tensor]:
        whole = bucket.buffer()
        narrow = whole.to(reduce) if reduce.itemsize < whole.dtype.itemsize else whole
        done: Future[Tensor] = Future(devices=[whole.device] if whole.is_cuda else None)
        work = dist.all_reduce(narrow, group=group, async_op=True)
        assert work is not None
        launched.append((work, done, whole, narrow))
        if bucket.is_last():
            _finish(launched)
        return done

    hook.__annotations__.clear()  # DDP compares annotations with classes, and ours are strings
    return hook


def _finish(launched: list[tuple[dist.Work, Future[Tensor], Tensor, Tensor]]) -> None:
    for work, done, whole, narrow in launched:
        work.wait()
        if narrow is not whole:
            whole.copy_(narrow)
        done.set_result(whole)
    launched.clear()

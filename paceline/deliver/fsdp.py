"""Sharded data parallelism (ZeRO, Rajbhandari et al. 2019, arXiv:1910.02054) on torch's FSDP2.

What each stage keeps between micro-batches of one step:

    zero3   weights dropped after each forward, gradients reduce-scattered every micro-batch
    zero2   weights kept from the first forward to the last backward, gradients reduce-scattered every micro-batch
    zero1   weights kept, gradients summed locally and reduced once

Why the divide factor is 1 and the reduction is forced to a plain sum: the loss is already divided by the global
token count. The factor alone passes in float64 and crashes on gloo in float32, whose path would need PREMUL_SUM.

Why set_is_last_backward is left alone: with False, FSDP2 keeps the forward order of the micro-batches before and
gathers one unit too many in every step (counted in tests/deliver/test_fsdp.py).

With a dp axis as well (HSDP) the mesh has two dims: gradients are reduce-scattered over fsdp and the shards
summed over dp, once a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from paceline.deliver.delivery import Delivery, Precision
from paceline.deliver.mesh import Mesh


def apply(model: nn.Module, units: Sequence[nn.Module], mesh: Mesh, precision: Precision) -> Delivery:
    """Shard ``model`` over the fsdp axis, and replicate the shards over dp where there is one.

    Args:
        model: on the meta device or a real one; its parameters become sharded DTensors, names unchanged.
        units: modules gathered as a whole, in forward order; the rest belongs to the root.
        mesh: has an fsdp axis.
        precision: compute dtype of the gathered weights, dtype of the gradient reduction.
    """
    layout = mesh.layout
    zero = layout.zero
    axes = ("dp", "fsdp") if layout.degree("dp") > 1 else ("fsdp",)
    policy = MixedPrecisionPolicy(
        param_dtype=precision.compute, reduce_dtype=precision.reduce, cast_forward_inputs=False
    )
    for unit in (*units, model):
        fully_shard(unit, mesh=mesh.axis(*axes), mp_policy=policy, reshard_after_forward=zero == "zero3")
    parts = [m for m in model.modules() if isinstance(m, FSDPModule)]
    for part in parts:
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)

    root = parts[0]

    def before(first: bool, last: bool) -> None:
        root.set_reshard_after_backward(zero == "zero3" or last)
        if zero == "zero1":
            root.set_requires_gradient_sync(last)
        else:
            root.set_requires_all_reduce(last)

    def settle() -> None:
        for part in parts:
            part.reshard()

    return Delivery(model, model, before, settle)

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
summed over dp, once a step. Context shards (cp) hold weights too: they are folded into the fsdp dim.

Experts under ep are sharded over the ranks that hold the same ones, which is another mesh; where there is no other
such rank they stay whole and FSDP2 leaves them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from paceline.deliver.delivery import Delivery, Part, Precision
from paceline.deliver.held import Held
from paceline.deliver.mesh import Mesh, Ranks, members
from paceline.plan.layout import Layout


def apply(parts: Sequence[Part], mesh: Mesh, precision: Precision) -> Delivery:
    """Shard the models over the fsdp axis, and replicate the shards over dp where there is one.

    Args:
        parts: on the meta device or a real one; parameters become sharded DTensors, names unchanged.
        mesh: has an fsdp axis.
        precision: compute dtype of the gathered weights, dtype of the gradient reduction.
    """
    zero = mesh.layout.zero
    dense = mesh.torch_mesh(*(("dp", "fsdp") if mesh.layout.dp > 1 else ("fsdp",)))
    experts = None
    if any(part.experts for part in parts) and mesh.size("edp") > 1:
        experts = mesh.torch_mesh("edp")
    for part in parts:
        _shard(part, dense, experts, precision, keep=zero != "zero3")
    roots = [part.model for part in parts]
    shards = [m for root in roots for m in root.modules() if isinstance(m, FSDPModule)]
    for shard in shards:
        shard.set_gradient_divide_factor(1.0)
        shard.set_force_sum_reduction_for_comms(True)
        if zero == "zero1":
            _accumulate_alike(shard)

    def before(first: bool, last: bool) -> None:
        for root in roots:
            assert isinstance(root, FSDPModule)
            root.set_reshard_after_backward(zero == "zero3" or last)
            if zero == "zero1":
                root.set_requires_gradient_sync(last)
            else:
                root.set_requires_all_reduce(last)

    def settle() -> None:
        for shard in shards:
            shard.reshard()

    return Delivery(roots, roots, before, settle)


@dataclass
class Gathered:
    """The memory of a shard as FSDP2 gathers from it: flat, and padded to the length of the longest shard."""

    _param: Any

    @property
    def flat(self) -> Tensor:
        """One dim; its first elements are the shard's."""
        flat: Tensor = self._param._sharded_param_data
        return flat


def gathered_from(models: Sequence[nn.Module]) -> dict[int, Gathered]:
    """id of each sharded parameter → the memory that it shares with what is gathered from it."""
    units = [m for model in models for m in model.modules() if isinstance(m, FSDPModule)]
    groups = [group for unit in units for group in unit._get_fsdp_state()._fsdp_param_groups]
    return {id(one.sharded_param): Gathered(one) for group in groups for one in group.fsdp_params}


def shards(place: Held, layout: Layout, rank: int) -> tuple[Ranks, int] | None:
    """Where :func:`apply` puts the shards of a rank's part of a parameter, for whoever must know without the ranks.

    Returns:
        The ranks that have a shard, in order, and the dim along which torch's chunk rule cuts; None: it stays whole.
    """
    if layout.fsdp == 1:
        return None
    if not place.expert:
        return members(layout, rank, "fsdp"), 0
    same = members(layout, rank, "edp")
    return (same, _expert_dim(place.extent, len(same))) if len(same) > 1 else None


def _accumulate_alike(shard: FSDPModule) -> None:
    """Weights that are first used in a step's last micro-batch, beside others that have accumulated since its first.

    torch keeps what has accumulated in the reduction's dtype and what has just come in the compute dtype, and refuses
    to reduce both at once (pytorch/pytorch#196996); weights that no forward has gathered yet it cannot even look at.
    """
    for group in shard._get_fsdp_state()._fsdp_param_groups:
        group.post_backward = partial(_post_backward, group, group.post_backward)  # type: ignore[method-assign]


def _post_backward(group: Any, plain: Callable[..., None], *unused: Any) -> None:
    gathered = [one for one in group.fsdp_params if hasattr(one, "_unsharded_param")]
    if not gathered:
        return
    if any(one.unsharded_accumulated_grad is not None for one in gathered):
        for one in gathered:
            one.accumulate_unsharded_grad_if_needed()
            one.to_accumulated_grad_if_needed()
    plain(*unused)


def _shard(
    part: Part, dense: DeviceMesh, experts: DeviceMesh | None, precision: Precision, *, keep: bool
) -> None:
    policy = MixedPrecisionPolicy(
        param_dtype=precision.compute, reduce_dtype=precision.reduce, cast_forward_inputs=False
    )
    aside: set[nn.Parameter] = set()
    for module in part.experts:
        if experts is None:
            aside |= set(module.parameters())
            continue
        fully_shard(
            module,
            mesh=experts,
            mp_policy=policy,
            reshard_after_forward=not keep,
            shard_placement_fn=lambda p: Shard(_expert_dim(p.shape, experts.size())),
        )
    for unit in (*part.units, part.model):
        fully_shard(
            unit, mesh=dense, mp_policy=policy, reshard_after_forward=not keep, ignored_params=aside or None
        )


def _expert_dim(shape: Sequence[int], shards: int) -> int:
    """Dim 0 holds the experts that are here; where they are fewer than the shards, dim 1 is cut if it divides."""
    return 1 if shape[0] < shards and shape[1] % shards == 0 else 0

"""Which axis delivers a layout: the one place that chooses, so that a new axis is one more row.

Three kinds of delivery, in the order in which they are put on: seams (tp, cp, ep move activations inside the
forward), wrappers (dp, fsdp move weights and gradients), and the sums of what is still partial at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from paceline.compute.seams import Seams
from paceline.deliver import cp, dp, ep, fsdp, tp
from paceline.deliver.delivery import Delivery, Part, Precision, single
from paceline.deliver.held import Held, ddp_sums
from paceline.deliver.mesh import Mesh
from paceline.deliver.sums import summation


def seams(mesh: Mesh) -> Seams:
    """What the model is built with on this rank."""
    layout = mesh.layout
    found = Seams()
    if layout.tp > 1:
        group = mesh.group("tp")
        assert group is not None
        found = replace(found, stream=tp.stream(group), vocabulary=tp.vocabulary(group))
    if layout.cp > 1:
        group = mesh.group("cp")
        assert group is not None
        found = replace(found, attend=cp.attention(layout.cp_kind, group))
    if layout.ep * layout.etp > 1:
        found = replace(found, dispatch=ep.dispatch(mesh.group("ep"), mesh.group("etp")))
    return found


def cuts_before_memory(mesh: Mesh) -> bool:
    """Whether a wrapper shards parameters, so that it must be put on before they take memory."""
    return mesh.layout.fsdp > 1


def deliver(parts: Sequence[Part], mesh: Mesh, precision: Precision) -> Delivery:
    """Wrap the models for the layout's dp and fsdp axes; see each axis file for what it does."""
    if mesh.layout.fsdp > 1:
        return fsdp.apply(parts, mesh, precision)
    if ddp_sums(mesh.layout):
        return dp.apply(parts, mesh, precision)
    return single(parts)


def finished(
    delivery: Delivery,
    named: Sequence[tuple[str, nn.Parameter]],
    held: dict[str, Held],
    mesh: Mesh,
    precision: Precision,
) -> Delivery:
    """The delivery with the sums that its wrappers leave open; ``named`` are the parameters after wrapping."""
    if all(len(held[name].to_sum) == 1 for name, _ in named):
        return delivery
    return replace(delivery, finish=summation(named, held, mesh, precision.reduce))

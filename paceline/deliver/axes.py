"""Which axis delivers a layout: the one place that chooses, so that a new axis is one more row."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from paceline.deliver import dp, fsdp
from paceline.deliver.delivery import Delivery, Precision, single
from paceline.deliver.mesh import Mesh


def cuts_before_memory(mesh: Mesh) -> bool:
    """Whether the axes shard parameters, so that they must be applied before the parameters take memory."""
    return mesh.layout.degree("fsdp") > 1


def deliver(model: nn.Module, units: Sequence[nn.Module], mesh: Mesh, precision: Precision) -> Delivery:
    """Apply the axes of the mesh's layout to ``model``; see each axis file for what it does."""
    if mesh.layout.degree("fsdp") > 1:
        return fsdp.apply(model, units, mesh, precision)
    if mesh.layout.degree("dp") > 1:
        return dp.apply(model, units, mesh, precision)
    return single(model)

"""Parameters → this rank's slices of them, on the meta device, before they take memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from paceline.deliver.held import Cuts, Held, hold
from paceline.plan.layout import Layout


def cut(
    model: nn.Module, cuts: Cuts, layout: Layout, rank: int, stages: Mapping[str, Sequence[int]]
) -> dict[str, Held]:
    """Replace every parameter that an axis cuts by this rank's slice of it.

    Args:
        model: on the meta device; its parameters are replaced in place. A tied weight is cut under its first name;
            the caller ties again afterwards.
        cuts: name → how it may be cut.
        stages: name → pp coordinates of the ranks that hold it, for weights tied over stages; absent = this one's.

    Returns:
        By parameter name, what this rank holds.
    """
    own = (layout.coordinates(rank)["pp"],)
    found: dict[str, Held] = {}
    for name, parameter in list(model.named_parameters()):
        place = hold(parameter.shape, cuts(name), layout, rank, stages.get(name, own))
        found[name] = place
        if place.extent != place.shape:
            _replace(model, name, place.extent, parameter)
    return found


def _replace(model: nn.Module, name: str, extent: Sequence[int], parameter: nn.Parameter) -> None:
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    slot = torch.empty(tuple(extent), dtype=parameter.dtype, device="meta")
    setattr(module, leaf, nn.Parameter(slot, requires_grad=parameter.requires_grad))

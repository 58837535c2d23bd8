"""How the decoder may be cut: which modules are one unit of sharding, and along which dim each weight may go.

``recipes`` hands this table to ``deliver``, which knows axes and never a model by name.
"""

from __future__ import annotations

from torch import nn

from paceline.compute.models.decoder import Decoder


def shard_units(model: Decoder) -> list[nn.Module]:
    """Modules whose parameters are gathered together, in forward order: one per block.

    What is left (embedding, final norm, head) belongs to the root, so that a tied weight is one parameter.
    """
    return list(model.layers)

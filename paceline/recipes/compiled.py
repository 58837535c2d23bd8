"""Per-block ``torch.compile``: each block in place, so that names stay and collectives are graph breaks at most."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from paceline.compute.models.cuts import shard_units
from paceline.compute.models.decoder import Decoder


def compile_blocks(models: Sequence[Decoder]) -> None:
    """Compile every block of the models; the first forward of each shape pays for it.

    ``dynamic=False``: every micro-batch has one shape, and a symbolic one would only be slower.
    """
    for model in models:
        for block in shard_units(model):
            assert isinstance(block, nn.Module)
            block.compile(dynamic=False)

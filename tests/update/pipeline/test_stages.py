"""What a stage refuses."""

from __future__ import annotations

import pytest
from torch import nn
from torch.distributed.fsdp import FSDPModule

from paceline.update.pipeline.shards import Shards


class Sharded(nn.Linear, FSDPModule):
    """As ``fully_shard`` leaves a class, without a mesh."""

    def __new__(cls, *args: object) -> Sharded:
        return nn.Module.__new__(cls)


def test_a_split_backward_over_zero3_is_refused_where_it_would_run() -> None:
    with pytest.raises(ValueError, match="fsdp=N:zero2"):
        Shards(Sharded(2, 2), "zero3", split=True)
    Shards(Sharded(2, 2), "zero3", split=False)
    Shards(nn.Linear(2, 2), "zero3", split=True)

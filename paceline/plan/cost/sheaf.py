"""A sheaf: many layouts that differ in numbers only, as columns, so that one formula prices all of them.

What decides which formula applies (the cut of layers, depth, sequence and experts, the schedule, the stage of
fsdp, what is recomputed) is one value for the whole sheaf; how many ranks share the batch, and the micro-batch, are
columns. A sheaf answers to the names of :class:`paceline.plan.layout.Layout` that ``plan/cost`` asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline.plan.columns import Column
from paceline.plan.layout import Layout


@dataclass(frozen=True, eq=False)
class Sheaf:
    """Layouts with the words and cuts of ``model`` and the columns ``dp``, ``fsdp``, ``mbs``.

    Attributes:
        model: a layout with dp = fsdp = 1; says everything that is the same for all.
        zero: the stage of fsdp. sharded: whether ``fsdp`` is above 1, for all of them or for none (then it is 1).
    """

    model: Layout
    dp: Column
    fsdp: Column
    mbs: Column
    zero: str = "zero3"
    sharded: bool = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.model, name)  # tp, pp, schedule, …: the same for all

    @cached_property
    def data_degree(self) -> Column:
        return self.dp * self.fsdp

    @cached_property
    def world_size(self) -> Column:
        return self.data_degree * (self.model.tp * self.model.pp * self.model.cp)

    def __len__(self) -> int:
        return len(self.mbs)

    def take(self, which: Column) -> Sheaf:
        """Those that an index or a mask picks."""
        fsdp = self.fsdp[which] if self.sharded else 1
        return Sheaf(self.model, self.dp[which], fsdp, self.mbs[which], self.zero, self.sharded)

    def layout(self, index: int) -> Layout:
        """One of them."""
        fsdp = int(self.fsdp[index]) if self.sharded else 1
        return self.model.replace(dp=int(self.dp[index]), fsdp=fsdp, zero=self.zero, mbs=int(self.mbs[index]))


Priced = Layout | Sheaf
"""What a price is asked of: one layout, or many at once."""

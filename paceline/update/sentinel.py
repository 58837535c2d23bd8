"""Whether this rank's own backward made a number that is not finite: seen before any sum over ranks has spread it.

What is looked at is the gradient that leaves a part of the model at its first layer: whatever is not finite behind it,
in the loss or in any layer's activations, arrives there. It costs one look at one activation a micro-batch. Two things
are not seen here, and name all ranks that share them: a weight's gradient that overflows alone, in its own product; and
which rank of a group that exchanges activations inside the backward (tp, cp, ep) was first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor


class Watched(Protocol):
    """A part of a model that calls ``watch`` with the gradient of what enters its first layer."""

    watch: Callable[[Tensor], None] | None


class Sentinel:
    """Looks on while gradients flow back through the parts that this rank holds.

    Args:
        parts: with the number of each one's stage in the pipeline, 0 where there is none.
    """

    def __init__(self, parts: Iterable[tuple[int, Watched]]) -> None:
        self._seen: dict[int, Tensor] = {}
        for stage, part in parts:
            part.watch = self._look_of(stage)

    def _look_of(self, stage: int) -> Callable[[Tensor], None]:
        def look(gradient: Tensor) -> None:
            # x - x is 0, or NaN where x is not finite: one pass and one number, which stays on the device
            found = (gradient.detach() - gradient.detach()).sum()
            self._seen[stage] = self._seen[stage] + found if stage in self._seen else found

        return look

    def forget(self) -> None:
        """A new step begins."""
        self._seen.clear()

    def furthest(self) -> int:
        """1 + the last stage of this rank whose gradient was not finite; 0 for none. Waits for the device."""
        bad = [stage for stage, found in self._seen.items() if not bool(torch.isfinite(found))]
        return 1 + max(bad) if bad else 0

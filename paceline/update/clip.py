"""The norm that clips: over all parameters, each element counted once, whatever the layout.

torch's clip_grad_norm_ refuses gradients of different meshes and leaves the counting of replicas to the caller.
Here each rank adds up its own slices, a slice held by r ranks weighs 1/r, and one sum over all ranks is the
square of the global norm. The order of additions is fixed, so that the same layout gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

# Squares are added in the gradient's own dtype inside a run of this many elements and in float64 across runs:
# the error of a float32 gradient stays near 1e-7 for any size, at a tenth of the cost of casting it all.
_RUN = 1 << 16


def local_square_sum(gradients: Iterable[tuple[Tensor, int]]) -> Tensor:
    """Σ g² over this rank's slices, each divided by the number of ranks that hold it; float64 scalar.

    Sum the result over all ranks to get the square of the global norm.

    Args:
        gradients: each with how many ranks of the world hold the same slice of it.
    """
    by_replicas: dict[int, list[Tensor]] = {}
    for gradient, replicas in gradients:
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        runs = local.reshape(-1).split(_RUN) if local.numel() else ()
        by_replicas.setdefault(replicas, []).extend(runs)
    total: Tensor | None = None
    for replicas in sorted(by_replicas):
        runs = by_replicas[replicas]
        if not runs:
            continue
        squares = torch.stack(torch._foreach_norm(runs)).double().square().sum() / replicas
        total = squares if total is None else total + squares
    return torch.zeros((), dtype=torch.float64) if total is None else total


@torch.no_grad()
def scale_gradients(gradients: Sequence[Tensor], norm: float, max_norm: float) -> None:
    """Multiply by max_norm / norm where the norm is larger; ``max_norm`` 0 leaves them alone."""
    if max_norm <= 0 or norm <= max_norm:
        return
    local = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    torch._foreach_mul_(local, max_norm / norm)

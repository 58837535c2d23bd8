"""Where a number that is not finite came from: which ranks, and the first tensor there.

Asked once, by all ranks, after the rule has fired. Weights are looked at first, then each rank's own loss, then
gradients. Those are summed over ranks by then, so that one rank's are not finite on all that share them: whose own
backward was not finite is what its sentinel (``sentinel.py``) has seen before the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from paceline.deliver.mesh import Mesh

KINDS = ("weights", "loss", "gradients")
NAME_BYTES = 256


def culprit(
    names: Sequence[str],
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    loss: Tensor,
    mesh: Mesh,
    furthest: int = 0,
) -> str:
    """One sentence, the same on every rank; called by all of them.

    Args:
        names, weights, gradients: this rank's parameters; None where one has no gradient.
        loss: this rank's own, not yet summed.
        furthest: 1 + the last stage on this rank whose own gradient was not finite before the sum; 0 for none.
    """
    bad = [
        [name for name, tensor in zip(names, weights, strict=True) if not _finite(tensor)],
        [] if _finite(loss) else ["loss"],
        [n for n, g in zip(names, gradients, strict=True) if g is not None and not _finite(g)],
    ]
    flags = torch.zeros(len(KINDS) + 1, mesh.world_size, dtype=torch.float64, device=loss.device)
    flags[:, mesh.rank] = torch.tensor([*(float(len(found)) for found in bad), furthest], dtype=torch.float64)
    *by_kind, stages = mesh.sum(flags).tolist()
    for kind, counts, mine in zip(KINDS, by_kind, bad, strict=True):
        ranks = [rank for rank, count in enumerate(counts) if count]
        if kind == "gradients" and max(stages):
            # gradients flow from the last stage to the first: where they were last finite is where it began
            ranks = [rank for rank in ranks if stages[rank] == max(stages)] or ranks
        if ranks:
            first = _of_rank(ranks[0], mine, mesh, loss.device)
            return _told(kind, ranks, int(counts[ranks[0]]), first, mesh.world_size)
    return "every rank's own weights, loss and gradients are finite: the sum over ranks is not"


def _told(kind: str, ranks: list[int], count: int, first: str, world: int) -> str:
    where = f"on rank {ranks[0]}" if len(ranks) == 1 else f"on ranks {', '.join(map(str, ranks[:8]))}"
    where += " …" if len(ranks) > 8 else ""
    where = "" if world == 1 else f" {where} of {world}"
    if kind == "loss":
        return f"the loss of its own rows is not finite{where}"
    more = f" and {count - 1} more" if count > 1 else ""
    return f"{kind} are not finite{where}: {first}{more}"


def _of_rank(rank: int, mine: Sequence[str], mesh: Mesh, device: torch.device) -> str:
    """The first name of one rank, on all of them: a sum with zeros is a broadcast."""
    box = torch.zeros(NAME_BYTES, dtype=torch.float64, device=device)
    if mesh.rank == rank:
        raw = mine[0].encode()[:NAME_BYTES]
        box[: len(raw)] = torch.tensor(list(raw), dtype=torch.float64)
    return bytes(int(value) for value in mesh.sum(box).tolist()).rstrip(b"\0").decode(errors="replace")


def _finite(tensor: Tensor) -> bool:
    mine = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return bool(torch.isfinite(mine).all())

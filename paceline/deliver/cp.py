"""Context parallelism: which tokens of a row a rank has, and the attention that sees the others' keys.

Title of the hard why: *zig-zag*. A causal query sees everything before it, so the rank with the last part of a
row would do nearly all the work. The row is cut into 2n chunks and rank i has chunks i and 2n-1-i, which together
see 2n+1 chunks whatever i is. Everything of a token goes with it; the ``segments`` of a row stay whole, because a
mask needs those of the keys.

Legend: n ranks of the group, S tokens of the whole row, T = S / n of them here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.compute.seams import Attention
from paceline.deliver.cp_attention import Gathered, Ulysses
from paceline.deliver.zigzag import chunks
from paceline.ledger.outcome import Exit, Refused

WHOLE = ("segments",)
"""What every rank keeps of the whole row."""


def take(batch: Mapping[str, Tensor], degree: int, index: int) -> dict[str, Tensor]:
    """This rank's tokens of each row of ``batch``, with their positions in it.

    Args:
        batch: tensors [B, S, …]; ``positions`` are the global index if they are not given.
        degree, index: of the ``cp`` axis.

    Raises:
        Refused: exit 10, S does not divide by 2·degree.
    """
    length = batch["tokens"].shape[1]
    taken = {
        name: value if name in WHOLE else _columns(value, degree, index) for name, value in batch.items()
    }
    if "positions" not in batch:
        here = rows(length, degree, index).to(batch["tokens"].device)
        taken["positions"] = here.expand(batch["tokens"].shape[0], -1)
    return taken


def rows(length: int, degree: int, index: int) -> Tensor:
    """Which tokens of a row of ``length`` are here, int64 [T], in the order in which they are held."""
    first, last = chunks(length, degree, index)
    return torch.tensor([*first, *last])


def attention(kind: str, group: dist.ProcessGroup) -> Attention:
    """The attention seam over the ``cp`` group; ``kind`` as in the layout.

    Raises:
        Refused: ``ring``, which is for CUDA and has not arrived.
    """
    if kind == "allgather":
        return Gathered(group)
    if kind == "ulysses":
        return Ulysses(group)
    # ring: keys and values go round by send and receive, one chunk's attention hides the next one's transfer.
    # It needs the log-sum-exp of each part, which only the CUDA kernels hand out.
    degree = group.size()
    raise Refused(
        f"cp={degree}:{kind} is not in this version",
        exit_code=Exit.USAGE,
        key="layout.use",
        seen=f"cp={degree}:{kind}",
        rule="ring attention is for CUDA and has not arrived; allgather and ulysses run on any device",
        allowed="allgather, ulysses",
        use=f"--layout cp={degree}:allgather",
    )


def _columns(value: Tensor, degree: int, index: int) -> Tensor:
    first, last = chunks(value.shape[1], degree, index)
    return torch.cat((value[:, first.start : first.stop], value[:, last.start : last.stop]), dim=1)

"""The order of a row's tokens under context parallelism, and back.

Legend: n ranks, 2n chunks of C tokens. *Natural* is 0 … 2n-1; *dealt* is rank by rank: 0, 2n-1, 1, 2n-2, …
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many


def chunks(length: int, degree: int, index: int) -> tuple[range, range]:
    """The two pieces of a row of ``length`` that rank ``index`` has, the earlier first.

    Raises:
        Refused: exit 10, the length does not divide by 2·degree.
    """
    if length % (2 * degree):
        nearest = max(1, round(length / (2 * degree))) * 2 * degree
        raise Refused(
            f"cp={degree} cannot deal a row of {many(length, 'token')}",
            exit_code=Exit.RULE,
            key="layout.use",
            seen=f"{many(length, 'token')} of a row",
            rule="2·cp divides data.sequence_length: each rank has an early and a late chunk of each row",
            use=f"data.sequence_length = {nearest}",
        )
    size = length // (2 * degree)
    late = 2 * degree - 1 - index
    return range(index * size, (index + 1) * size), range(late * size, (late + 1) * size)


def natural(dealt: Tensor, degree: int, dim: int) -> Tensor:
    """What the ranks have, one after the other along ``dim``, in the order of the row."""
    pairs = dealt.unflatten(dim, (degree, 2, -1))
    early, late = pairs.unbind(dim + 1)
    return torch.cat((early, late.flip(dim)), dim).flatten(dim, dim + 1)


def dealt(natural: Tensor, degree: int, dim: int) -> Tensor:
    """Inverse of :func:`natural`."""
    early, late = natural.unflatten(dim, (2, degree, -1)).unbind(dim)
    return torch.stack((early, late.flip(dim)), dim + 1).flatten(dim, dim + 2)

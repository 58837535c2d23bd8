"""Whether ranks that hold the same weights still hold the same bits.

Replicas get the same gradients and do the same arithmetic, so they stay equal to the last bit for as long as every
device computes right. A difference means that a bit has changed where nobody wrote, or that a device computes wrongly;
nothing else shows it: losses stay finite and training goes on, on two models.

What is compared is a sum of the bits of each weight and of its optimizer state, taken as integers: any one flipped bit
changes it. It costs one pass over them and one message of a few numbers for each rank.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.deliver.mesh import Mesh, Ranks

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EXACT = (
    1 << 48
) - 1  # integers of so many bits are exact in float64, and so are sums of zeros with one of them
_MIXING = 0x9E3779B1


@dataclass(frozen=True)
class Differing:
    """Ranks that should hold the same and do not. ``odd`` are those outside the majority; all where there is none."""

    ranks: Ranks
    odd: Ranks
    name: str
    more: int

    def __str__(self) -> str:
        many = f" and {self.more} more" if self.more else ""
        if self.odd == self.ranks:
            told = f"ranks {_listed(self.ranks)} hold different values of {self.name}{many}"
            return f"{told}; which is right cannot be told from {len(self.ranks)}"
        who = "rank" if len(self.odd) == 1 else "ranks"
        same = [rank for rank in self.ranks if rank not in self.odd]
        return (
            f"{who} {_listed(self.odd)} differs in {self.name}{many} from ranks {_listed(same)}, which agree"
        )


class Replicas:
    """Compares this rank's weights with those of the ranks that hold the same.

    Args:
        names, parameters: of this rank. held_by: for each, the ranks that hold the same slice of it.
    """

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        held_by: Sequence[Ranks],
        optimizer: torch.optim.Optimizer,
        mesh: Mesh,
    ) -> None:
        self._optimizer, self._mesh = optimizer, mesh
        self._groups: dict[Ranks, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter, ranks in zip(names, parameters, held_by, strict=True):
            if len(ranks) > 1:
                self._groups.setdefault(tuple(ranks), []).append((name, parameter))
        self._most = 0

    def compare(self, device: torch.device) -> Differing | None:
        """The first difference, the same on every rank; called by all of them."""
        if self._mesh.world_size == 1:
            return None
        sums = {ranks: self._sums(held) for ranks, held in self._groups.items()}
        bad = self._first_bad({ranks: _mixed(found) for ranks, found in sums.items()}, device)
        return None if bad is None else self._looked_at(bad, sums.get(bad, []), device)

    def _first_bad(self, mine: dict[Ranks, int], device: torch.device) -> Ranks | None:
        """Members of the first group whose sums differ, from one message of all ranks."""
        if not self._most:
            self._most = int(self._mesh.max(_numbers([len(mine), 1], device))[0].item()) or 1
        table = torch.zeros(self._mesh.world_size, self._most, 2, dtype=torch.float64)
        for slot, (ranks, value) in enumerate(sorted(mine.items())):
            table[self._mesh.rank, slot] = torch.tensor([_id(ranks), value], dtype=torch.float64)
        rows = self._mesh.sum(table.to(device)).tolist()
        by_group: dict[int, dict[int, int]] = {}
        for rank, row in enumerate(rows):
            for group, value in row:
                if group:
                    by_group.setdefault(int(group), {})[rank] = int(value)
        for _, found in sorted(by_group.items(), key=lambda item: sorted(item[1])):
            if len(set(found.values())) > 1:
                return tuple(sorted(found))
        return None

    def _looked_at(self, bad: Ranks, sums: Sequence[int], device: torch.device) -> Differing:
        """Which tensor it is, and whose: the members of one group send a number for each of theirs."""
        size = int(self._mesh.max(_numbers([len(sums)], device)).item())
        table = torch.zeros(len(bad), size, dtype=torch.float64)
        if self._mesh.rank in bad:
            table[bad.index(self._mesh.rank), : len(sums)] = torch.tensor(sums, dtype=torch.float64)
        columns = list(zip(*self._mesh.sum(table.to(device)).tolist(), strict=True))
        wrong = [number for number, column in enumerate(columns) if len(set(column)) > 1]
        column = columns[wrong[0]]
        (value, times), *_ = Counter(column).most_common()
        odd = tuple(rank for rank, one in zip(bad, column, strict=True) if one != value)
        name = self._name(bad, wrong[0], device)
        return Differing(bad, odd if 2 * times > len(bad) else bad, name, len(wrong) - 1)

    def _name(self, bad: Ranks, number: int, device: torch.device) -> str:
        """The tensor's name as the first of these ranks has it, on all: a sum with zeros is a broadcast."""
        box = torch.zeros(256, dtype=torch.float64)
        if self._mesh.rank == bad[0]:
            raw = self._groups[bad][number][0].encode()[:256]
            box[: len(raw)] = torch.tensor(list(raw), dtype=torch.float64)
        found = self._mesh.sum(box.to(device)).tolist()
        return bytes(int(value) for value in found).rstrip(b"\0").decode(errors="replace")

    def _sums(self, held: Iterable[tuple[str, nn.Parameter]]) -> list[int]:
        """For each parameter the sum of its bits and of its state's."""
        found = []
        for _, parameter in held:
            state = self._optimizer.state.get(parameter, {})
            tensors = [
                parameter.detach(),
                *(state[key] for key in sorted(state) if torch.is_tensor(state[key])),
            ]
            found.append(torch.stack([_bits(tensor).to(parameter.device) for tensor in tensors]))
        return [_mixed(one.tolist()) for one in found]


def _bits(tensor: Tensor) -> Tensor:
    """int64[]: the sum of a tensor's bits as integers, in this rank's part of it."""
    mine = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return mine.contiguous().view(-1).view(_INTEGERS[mine.element_size()]).sum(dtype=torch.int64)


def _mixed(values: Iterable[int]) -> int:
    """One number that depends on each of them and on their order."""
    found = 1
    for value in values:
        found = (found * _MIXING + value) & _EXACT
    return found


def _id(ranks: Ranks) -> int:
    return 1 + zlib.crc32(repr(ranks).encode())


def _numbers(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).to(device)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")

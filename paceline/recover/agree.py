"""All ranks go on together or fail together: the one way in which the ranks of a save or a load talk.

Each rank reports how its part went; if one failed, its error goes to all, and every rank raises the same.
Two small tensors on the wire, no object and no pickle; without a failure only the first of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from paceline.ledger.outcome import PacelineError, from_dict
from paceline.recover.together import as_paceline

_ERROR_BYTES = 8192
T = TypeVar("T")


class Ranks:
    """The ranks that save or load one state. ``group`` None is one rank alone.

    Args:
        device: where the group's backend takes tensors: the CPU for gloo, this rank's device for nccl.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device | str = "cpu") -> None:
        self.group, self.device = group, device
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def together(self, part: Callable[[], T], *, on: int | None = None) -> T | None:
        """Run this rank's part (of rank ``on`` only, if given) and wait for the others'.

        Raises:
            PacelineError: the error of the lowest rank that failed, the same on every rank.
        """
        failure: Exception | None = None
        result: T | None = None
        try:
            result = part() if on is None or on == self.rank else None
        except Exception as error:
            failure = error
        if self.size == 1:
            if failure is not None:
                raise failure
            return result
        first = self._first_failed(failure is not None)
        if first < self.size:
            raise self._spread(failure, first) from failure
        return result

    def total(self, value: int) -> int:
        """The sum of every rank's number."""
        if self.group is None:
            return value
        box = torch.tensor([value], dtype=torch.int64, device=self.device)
        dist.all_reduce(box, group=self.group)
        return int(box.item())

    def _first_failed(self, failed: bool) -> int:
        box = torch.tensor([self.rank if failed else self.size], dtype=torch.int64, device=self.device)
        dist.all_reduce(box, op=dist.ReduceOp.MIN, group=self.group)
        return int(box.item())

    def _spread(self, failure: Exception | None, source: int) -> PacelineError:
        """The error of rank ``source``, on every rank. A sum of one term is a broadcast."""
        box = torch.zeros(_ERROR_BYTES, dtype=torch.int32, device=self.device)
        if self.rank == source and failure is not None:
            raw = _encode(as_paceline(failure, self.rank))
            box[: len(raw)] = torch.tensor(list(raw), dtype=torch.int32)
        dist.all_reduce(box, group=self.group)
        return from_dict(json.loads(bytes(box.tolist()).rstrip(b"\0").decode()))


def _encode(error: PacelineError) -> bytes:
    fields = error.to_dict()
    for limit in (4000, 400, 40):
        raw = json.dumps({k: v[:limit] if isinstance(v, str) else v for k, v in fields.items()}).encode()
        if len(raw) <= _ERROR_BYTES:
            return raw
    return raw[:_ERROR_BYTES]

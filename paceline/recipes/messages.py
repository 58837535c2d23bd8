"""What a message between ranks costs inside a step: timed between products, as training sends it.

A rank that waits gives its core away, and gets it back some time after its message came; ranks that compute between two
messages do not come to the second at the same moment. Neither is in a collective that is timed alone: for a message of
1 MiB between two processes it takes 2 ms, and in a step 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

COLLECTIVE_BYTES = (1 << 16, 1 << 20, 1 << 23, 1 << 25)
BETWEEN_S = 8e-3  # of products before each message: about what a layer's part computes
PRODUCT = 256
TIMES, FEW_TIMES = 10, 3  # of messages up to, and of more than
LARGE_BYTES = 1 << 23
SPIN_PRODUCTS = 20

Call = Callable[[], object]


def messages(ranks: int, rounds: int = 1, *, busy: bool = False) -> list[dict[str, Any]]:
    """Op, ranks, bytes (of the full message) and seconds of dp's and fsdp's three collectives; medians of the rounds.

    ``busy``: other programs hold the cores, so that of four times as many the shortest counts.
    """
    work = _work()
    rows = []
    for size in COLLECTIVE_BYTES:
        for op, call in _calls(size, ranks).items():
            times = FEW_TIMES if size > LARGE_BYTES else TIMES
            found = [_within_s(work, call, times) for _ in range(4 * rounds if busy else rounds)]
            seconds = min(found) if busy else median(found)
            rows.append({"op": op, "ranks": ranks, "bytes": size, "seconds": max(seconds, 1e-6)})
    return rows


def _calls(size: int, ranks: int) -> dict[str, Call]:
    whole = torch.ones(size // 4)
    part = torch.ones(size // 4 // ranks)
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    }


def _work() -> Call:
    """Products that take about :data:`BETWEEN_S` of a rank that computes alone, as many on each."""
    a = torch.ones(PRODUCT, PRODUCT)
    began = time.perf_counter()
    for _ in range(SPIN_PRODUCTS):
        torch.mm(a, a)
    one_s = _largest((time.perf_counter() - began) / SPIN_PRODUCTS)
    count = max(1, round(BETWEEN_S / one_s))

    def work() -> None:
        for _ in range(count):
            torch.mm(a, a)

    return work


def _within_s(work: Call, call: Call, times: int) -> float:
    """What a call adds to the work before it; a figure of all ranks together, since the slowest decides."""
    call()
    alone, both = [], []
    for _ in range(2):  # in turns: what else the machine does falls on both
        alone.append(_together_s(work, None, times))
        both.append(_together_s(work, call, times))
    return _largest(median(both) - median(alone))


def _together_s(work: Call, call: Call | None, times: int) -> float:
    dist.barrier()
    began = time.perf_counter()
    for _ in range(times):
        work()
        if call is not None:
            call()
    dist.barrier()
    return (time.perf_counter() - began) / times


def _largest(value: float) -> float:
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor[0])

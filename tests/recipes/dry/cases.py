"""What the ranks of the dry run's tests run: the real step, its messages added up, its memory watched from outside."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from paceline.deliver import cp
from paceline.deliver.mesh import build_mesh
from paceline.deliver.wire.record import Account
from paceline.deliver.wire.world import World
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import CallRow, Ledger
from paceline.plan.layout import Layout
from paceline.recipes.assemble import assemble
from paceline.recipes.dry.step import CPU
from paceline.update.every_step import Counts
from tests.tiny import ragged_batches, share_of


class Sums:
    """A ledger that adds messages up by axis and operation."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], list[int]] = {}

    def span(self, phase: str, reason: str, /) -> Account:
        return Ledger(None).span(phase, reason)

    def call(self, row: CallRow, /) -> None:
        sums = self.found.setdefault((row.axis, row.op), [0, 0])
        sums[0] += 1
        sums[1] += row.bytes


def second_step(
    world: World | None, *, job: Job, widths: ModelWidths, layout: str, precision: str, rows: int, count: int
) -> dict[tuple[str, str], list[int]]:
    """(axis, op) → [calls, bytes] of this rank in its second step."""
    parsed = Layout.parse(layout)
    rank = 0 if world is None else world.rank
    mesh = build_mesh(parsed, rank, world)
    built = assemble(job, widths, precision, mesh, CPU)
    policy = built.policy(job, mesh, CPU, Ledger(None))
    sums = Sums()
    for batch in ragged_batches(2, documents=False, rows=rows * count * parsed.data_degree):
        sums.found.clear()
        if world is not None:
            world.recorder.ledger = sums
        share = share_of(batch, mesh.data_rank, mesh.data_degree, rows)
        if parsed.cp > 1:
            share = [cp.take(b, parsed.cp, mesh.at["cp"]) for b in share]
        policy.step(share, Counts(1.0, 1.0, 1.0), 1e-3)
    return sums.found


def allocated(
    job: Job, widths: ModelWidths, precision: str, rows: int, count: int, length: int
) -> dict[str, int]:
    """One device: the most that torch's allocator had given out during the second step, as its profiler saw it,
    and what it had given out before; bytes, above what was there when profiling began."""
    mesh = build_mesh(Layout.parse("single"), 0, None)

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        built = assemble(job, widths, precision, mesh, CPU)
        policy = built.policy(job, mesh, CPU, Ledger(None))
        for number in range(2):
            share = [
                {name: torch.zeros(rows, length, dtype=torch.int64) for name in ("tokens", "targets")}
                for _ in range(count)
            ]
            with torch.profiler.record_function(f"step {number}"):
                policy.step(share, Counts(1.0, 1.0, 1.0), 1e-3)
    return _peak(seen, "step 1")


def _peak(seen: Any, during: str) -> dict[str, int]:
    total = before = most = 0
    start = end = None
    events = sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns())
    for event in events:
        if event.name() == during:
            start, end = event.start_ns(), event.start_ns() + event.duration_ns()
            before = total
        elif event.name() == "[memory]":
            total += event.nbytes()
            if start is not None and event.start_ns() <= end:
                most = max(most, total)
    return {"before": before, "most": most}

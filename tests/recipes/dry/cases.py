"""What the ranks of the dry run's tests run: the real step on real tensors, its messages and memory added up."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from paceline.compute.models.moe import Router
from paceline.deliver import cp
from paceline.deliver.mesh import Mesh, build_mesh
from paceline.deliver.wire.record import Account
from paceline.deliver.wire.world import World
from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.spans import CallRow, Ledger
from paceline.plan.layout import Layout
from paceline.recipes.assemble import assemble
from paceline.recipes.dry.memory import MemoryLog
from paceline.recipes.dry.step import CPU, OUTSIDE, watch_step
from paceline.update.every_step import Counts

Batches = list[dict[str, Tensor]]


class Sums:
    """A ledger that adds messages up by axis and operation."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], list[int]] = {}
        self._ledger = Ledger(None)

    def span(self, phase: str, reason: str, /) -> Account:
        return self._ledger.span(phase, reason)

    def call(self, row: CallRow, /) -> None:
        sums = self.found.setdefault((row.axis, row.op), [0, 0])
        sums[0] += 1
        sums[1] += row.bytes


def second_step(
    world: World | None, *, job: Job, widths: ModelWidths, layout: str, precision: str, rows: int, count: int
) -> dict[str, Any]:
    """Of this rank in its second step, on real tensors: ``calls``, (axis, op) → [calls, bytes], and ``memory``,
    moment → bytes by kind at that moment's peak."""
    mesh = build_mesh(Layout.parse(layout), 0 if world is None else world.rank, world)
    sums = Sums()
    with MemoryLog() as memory, _EvenChoice():
        built = assemble(job, widths, precision, mesh, CPU)
        policy = built.policy(job, mesh, CPU, Ledger(None))

        def step() -> None:
            policy.step(_batches(job, mesh, rows, count), Counts(1.0, 1.0, 1.0), 1e-3)

        step()
        if world is not None:
            world.recorder.ledger = sums
        watch_step(built, memory, step)
        moments = {moment: held for moment, held in memory.peaks().items() if moment not in OUTSIDE}
    return {"calls": sums.found, "memory": moments}


def allocated(job: Job, widths: ModelWidths, precision: str, rows: int, count: int) -> dict[str, int]:
    """One device: what torch's allocator had given out when the second step began (``before``), and at most during
    it (``most``); bytes, by torch's profiler, above what was there when the model was made."""
    mesh = build_mesh(Layout.parse("single"), 0, None)
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        built = assemble(job, widths, precision, mesh, CPU)
        policy = built.policy(job, mesh, CPU, Ledger(None))
        for number in range(2):
            with record_function(f"step {number}"):
                policy.step(_batches(job, mesh, rows, count), Counts(1.0, 1.0, 1.0), 1e-3)
    return _peak(seen, "step 1")


def _batches(job: Job, mesh: Mesh, rows: int, count: int) -> Batches:
    shape = (rows, job.data.sequence_length)
    found = [
        {name: torch.ones(shape, dtype=torch.int64) for name in ("tokens", "targets")} for _ in range(count)
    ]
    degree = mesh.layout.cp
    return found if degree == 1 else [cp.take(batch, degree, mesh.at["cp"]) for batch in found]


class _EvenChoice:
    """While it is entered, routers send token i to the experts i·K, i·K + 1, …: the same load for each."""

    def __enter__(self) -> None:
        self.original = Router.choose

        def choose(router: Router, scores_NE: Tensor) -> Tensor:
            tokens, experts = scores_NE.shape
            return (torch.arange(tokens * router.top_k) % experts).view(tokens, router.top_k)

        Router.choose = choose  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        Router.choose = self.original  # type: ignore[method-assign]


def _peak(seen: Any, during: str) -> dict[str, int]:
    total = before = most = 0
    start = end = None
    events = sorted(seen.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    for event in events:
        if event.name() == during:
            start, end = event.start_ns(), event.start_ns() + event.duration_ns()
            before = total
        elif event.name() == "[memory]":
            total += event.nbytes()
            if start is not None and event.start_ns() <= end:
                most = max(most, total)
    return {"before": before, "most": most}

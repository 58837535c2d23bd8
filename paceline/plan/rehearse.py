"""The best layouts' schedules, run action by action: what a closed form says of waiting, replaced by a simulation.

Each stage has its own seconds (its layers by kind, the embedding, the head), and a rank two streams: it computes,
and its sends queue behind one another beside that (``pipeline/clock.py``). Long steps are run for some rounds and
extended: a schedule's steady state repeats itself. Messages of fsdp, tp and cp stay as the closed forms have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.plan.answer import Candidate
from paceline.plan.cost import cp, ep, pp, single, tp
from paceline.plan.cost.held import held_by
from paceline.plan.cost.step import micro_batch
from paceline.plan.cost.terms import Delivered, micro_batches
from paceline.plan.decide import price
from paceline.plan.layout import Layout
from paceline.plan.pipeline.clock import Seconds, Transfer, simulate
from paceline.plan.weigh import Question

ROUNDS = 3
"""Of pp micro-batches each that are run; more are extended from the last of them."""
MOST_ACTIONS = 60_000


@dataclass
class Rehearsal:
    """Runs schedules until its actions are used up; equal pipelines are run once."""

    question: Question
    left: int = MOST_ACTIONS
    known: dict[Any, float] = field(default_factory=dict)

    def again(self, candidate: Candidate) -> Candidate | None:
        """The candidate with the waiting of its schedule as it runs; None without a pipeline, or without time."""
        layout = candidate.layout
        if layout.pp == 1:
            return None
        rows, micros = micro_batches(layout, self.question.facts.work.global_batch)
        key = layout.replace(dp=1, fsdp=1, mbs=rows), micros, layout.world_size
        if key not in self.known:
            actions = 2 * layout.stages * min(micros, (2 * ROUNDS - 1) * layout.pp)
            if actions > self.left:
                return None
            self.left -= actions
            self.known[key] = idle_s(self.question, layout)
        return price(self.question, layout, idle_s=self.known[key])


def idle_s(question: Question, layout: Layout) -> float:
    """Seconds of a step in which the slowest coordinate of a pipeline waits: for its neighbours, or for their sends."""
    work, speeds = question.facts.work, question.speeds
    rows, micros = micro_batches(layout, work.global_batch)
    devices = layout.world_size if question.cluster.is_cpu else question.cluster.near
    each = stage_seconds(question, layout, rows, devices)
    transfer_s = _transfer_s(question, layout, rows, devices)
    whole = _makespan_s(layout, micros, each, transfer_s)
    one, inside, _ = micro_batch(layout, work, speeds, devices, rows, sends=False)
    return max(0.0, float(whole - micros * (one + inside.exposed_s)))


def stage_seconds(question: Question, layout: Layout, rows: int, devices: int) -> list[Seconds]:
    """Forward and both halves of backward of each stage, with the messages inside its layers."""
    work, speeds = question.facts.work, question.speeds
    again = single.recomputed(layout, speeds)
    found = []
    apart = layout.replace(pp=layout.stages, schedule="1f1b", vpp=1)
    for held in held_by(apart, work.widths, work.sequence_length):
        sent = [axis.deliver(layout, work, speeds, devices, held, rows) for axis in (tp, cp, ep)]
        exposed = float(sum(sent, Delivered()).exposed_s)
        total = float(single.compute_s(layout, work, speeds, held, rows))
        third = total / again / 3
        found.append(Seconds(third + exposed / 3, total - 2 * third + exposed / 3, third + exposed / 3))
    return found


def _transfer_s(question: Question, layout: Layout, rows: int, devices: int) -> Transfer:
    near_s, far_s = pp.hop_s(layout, question.facts.work, question.speeds, devices, rows)
    on_host = pp.stages_on_host(layout, devices)
    return lambda rank, to: float(near_s if rank // on_host == to // on_host else far_s)


def _makespan_s(layout: Layout, micros: int, each: Sequence[Seconds], transfer_s: Transfer) -> float:
    run = ROUNDS * layout.pp
    if micros <= run:
        return simulate(layout, micros, each, transfer_s).makespan_s
    less = simulate(layout, run - layout.pp, each, transfer_s).makespan_s
    more = simulate(layout, run, each, transfer_s).makespan_s
    return more + (micros - run) * (more - less) / layout.pp

"""What the search asks of a layout, of one or of a column of them: does it fit, is it late, how good is it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from paceline.plan import chance, money
from paceline.plan.cluster import Cluster
from paceline.plan.columns import Column, exponential, is_column
from paceline.plan.cost.terms import Estimate
from paceline.plan.digits import GIB
from paceline.plan.facts import JobFacts, cpp_compiler
from paceline.plan.goodput import Failures
from paceline.plan.layout import Layout
from paceline.plan.model import kinds
from paceline.plan.rules import Facts
from paceline.plan.speed.speeds import Speeds

MEMORY_SIGMA = 0.08
MOST_OOM = 0.10
SURE_TO_FIT = math.exp(-1.2815515655446004 * MEMORY_SIGMA)
"""Of a device: up to here a layout runs out of memory in at most ``MOST_OOM`` of cases."""
ROOM = 0.01  # of the step: what a full memory costs against an empty one, so that equals prefer room


@dataclass(frozen=True)
class Question:
    """What is asked of the search: the job, where, by which objective and under which limits."""

    facts: JobFacts
    cluster: Cluster
    speeds: Speeds
    objective: str = "time"
    deadline_s: float | None = None
    budget_usd: float | None = None
    optimizer: str = "adamw"
    residency: str = ""
    failures: Failures | None = None

    def overhead(self, world: Column, step_s: Column) -> Column:
        """Time of the run over the time of its steps."""
        return 1.0 if self.failures is None else self.failures.overhead(world, step_s)

    def least_overhead(self, world: Column) -> Column:
        """At most :meth:`overhead`, whatever a step takes."""
        by_clock = self.failures is not None and self.failures.every_steps is None
        return self.overhead(world, 0.0) if by_clock else 1.0

    @cached_property
    def rule_facts(self) -> Facts:
        return Facts(
            widths=self.facts.work.widths,
            global_batch=self.facts.work.global_batch,
            devices=self.cluster.world,
            hosts=self.cluster.hosts,
            cpu=self.cluster.is_cpu,
            optimizer=self.optimizer,
            sequence_length=self.facts.work.sequence_length,
            residency=self.residency,
            compiler=cpp_compiler() if self.cluster.is_cpu and self.cluster.visible else None,
        )


def fits(device_bytes: Column, limit: Column) -> Column:
    """Whether it is at most ``MOST_OOM`` likely to run out of memory."""
    return device_bytes <= limit * SURE_TO_FIT


def weigh(question: Question, step_s: Column, device_bytes: Column, world: Column, limit: Column) -> Column:
    """What the objective makes small."""
    if question.objective == "memory":
        return device_bytes / GIB * (1 + 1e-3 * step_s)
    room = (1 + ROOM * device_bytes / limit) * question.overhead(world, step_s)
    return step_s * room * (money.weight(question.cluster, world) if question.objective == "cost" else 1)


def moved_bytes(question: Question) -> int:
    """What leaves a rented cluster in the end: the trained weights, once."""
    work = question.facts.work
    return work.count.total * work.master_bytes


def is_late(question: Question, found: Estimate, world: Column) -> Column:
    """Whether the run would be late or too dear at the upper end of its interval."""
    steps = question.facts.steps
    if steps is None or (question.deadline_s is None and question.budget_usd is None):
        return False
    spread = chance.sigma(found.seconds, sigmas(question, found))
    hours = found.step_s * exponential(chance.NINETY * spread) * steps / 3600
    hours = hours * question.overhead(world, found.step_s)
    late: Column = False
    if question.deadline_s is not None:
        late = hours * 3600 > question.deadline_s
    if question.budget_usd is not None:
        usd = money.usd(question.cluster, hours, world, moved_bytes(question))
        late = late if usd is None else late | (usd > question.budget_usd)
    return late


def sigmas(question: Question, found: Estimate) -> dict[str, Column]:
    """The parts' errors; compute is surer the nearer a measured block is."""
    sigma: dict[str, Column] = dict(question.speeds.sigma)
    work, mbs = question.facts.work, found.layout.mbs or 1 if not is_column(found.layout.mbs) else None
    distance = getattr(question.speeds, "distance", lambda *_: math.inf)
    kind = kinds(work.widths)[-1][0]

    def surer(rows: int) -> float:
        far = distance(kind, work.sequence_length, rows)
        return min(0.35, sigma["compute"] * (0.7 + 0.5 * far)) if math.isfinite(far) else sigma["compute"]

    if mbs is not None:
        return sigma | {"compute": surer(mbs)}
    import numpy as np

    rows, place = np.unique(np.asarray(found.layout.mbs), return_inverse=True)
    return sigma | {"compute": np.array([surer(int(n)) for n in rows])[place]}


def unit(question: Question) -> str:
    """Of the objective, in a rejection."""
    return {"memory": "GiB", "cost": "device-s a step"}.get(question.objective, "s a step")


FAMILY = ("dp", "fsdp", "tp", "pp", "cp", "ep")


@lru_cache(maxsize=1 << 14)
def family(layout: Layout) -> str:
    """Layouts that cut by the same axes in the same way, whatever their degrees."""
    axes = [axis for axis in FAMILY if layout.degree(axis) > 1]
    words = {"fsdp": layout.zero, "pp": layout.schedule, "cp": layout.cp_kind}
    return ",".join(f"{axis}:{words[axis]}" if axis in words else axis for axis in axes) or "single"


def plainness(layout: Layout) -> tuple[int, int, int]:
    """What running a layout takes: processes, axes, and options that are not the usual ones."""
    axes, words = simplicity(layout)[:2]
    return layout.world_size, axes, words - (layout.mbs is not None)


def simplicity(layout: Layout) -> tuple[Any, ...]:
    """Order among equals: fewer axes, fewer words, then by name."""
    text = str(layout)
    return sum(layout.degree(axis) > 1 for axis in FAMILY), text.count(",") + text.count(":"), len(text), text

"""What an offer cannot beat: its time and cost if every device computed at its peak, and whether the state fits at all.

No message, no optimizer, no waiting: always below what the search answers, and made in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan import money
from paceline.plan.weigh import Question, moved_bytes

MILLION = 1e6


@dataclass(frozen=True)
class Least:
    """Lower bounds. ``usd``: None where no price is known. ``holds``: weights and optimizer fit, spread evenly."""

    hours: float
    usd: float | None
    holds: bool


def least(question: Question) -> Least:
    """Of a question's cluster, with all its hosts."""
    cluster, facts = question.cluster, question.facts
    world, work = cluster.world, facts.work
    peak = 0.0 if cluster.is_cpu else question.speeds.peak_flops(world)
    hours = tokens_of(question) * facts.flops_token / (world * peak) / 3600 if peak else 0.0
    state = work.count.total * work.master_bytes * (1 + work.optimizer_states)
    room = cluster.memory_bytes * (cluster.hosts if cluster.is_cpu else world)
    return Least(
        hours, sum(parts.values()) if (parts := bill(question, hours, world)) else None, state <= room
    )


def tokens_of(question: Question) -> float:
    """Of the run; of a run of unknown length a million."""
    steps = question.facts.steps
    return steps * question.facts.tokens_per_step if steps else MILLION


def bill(question: Question, hours: float, world: int) -> dict[str, float]:
    """The parts of the cost; of a run of unknown length those that grow with its tokens."""
    if question.facts.steps:
        return money.usd_parts(question.cluster, hours, world, moved_bytes(question))
    parts = money.usd_parts(question.cluster, hours, world, 0.0)
    own = question.cluster.own
    once = {"egress"} | ({"initial"} if own is not None and own.usd_each is not None else set())
    return {name: value for name, value in parts.items() if name not in once}

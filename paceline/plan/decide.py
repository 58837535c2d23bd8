"""From layouts to a decision: price each, drop what cannot be, and go device → host → cluster.

Inside an interval the simplest wins: more hosts, more processes, more axes or more options are taken only when they
are very probably better, or when what is simpler does not fit or would be late.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from paceline.plan import chance, money
from paceline.plan.answer import GIB, Candidate, Rejection
from paceline.plan.census import Census
from paceline.plan.cost.step import Memory, estimate, memory_of
from paceline.plan.layout import Layout
from paceline.plan.rules import first_broken, repair
from paceline.plan.tally import Tally
from paceline.plan.weigh import (
    MEMORY_SIGMA,
    Question,
    fits,
    moved_bytes,
    plainness,
    sigmas,
    simplicity,
    weigh,
)

SCOPES = ("device", "host", "cluster")
SURE = 0.9
WORTH = 0.02
MOST_NEAR = 200  # cuts among which the nearest to one that does not fit is looked for


@dataclass
class Judged:
    """Candidates that may run, in order of the objective, and everything else with its reason."""

    candidates: list[Candidate] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    census: Census = field(default_factory=Census)

    def by_kind(self) -> list[tuple[Layout, str]]:
        """Every layout with its kind of rejection, "" of a candidate."""
        return [(c.layout, "") for c in self.candidates] + [(r.layout, r.kind) for r in self.rejected]


def judge(
    question: Question,
    layouts: Iterable[Layout],
    *,
    explain: bool = True,
    known: Mapping[Layout, Memory] | None = None,
) -> Judged:
    """Price every layout; rules, memory, deadline and budget drop some.

    Args:
        explain: look for the nearest of what is rejected.
        known: memory that was asked for already.
    """
    found = Judged()
    too_large: list[Rejection] = []
    facts, work = question.rule_facts, question.facts.work
    for layout in layouts:
        broken = first_broken(layout, facts)
        if broken is not None:
            repaired = str(repair(layout, facts)) if explain else ""
            found.rejected.append(Rejection(layout, "rule", 0.0, 0.0, "", repaired, broken[1]))
            continue
        memory = (known or {}).get(layout) or memory_of(layout, work, question.speeds, question.cluster)
        room = memory_limit(question, layout)
        if not fits(memory[3], room):
            too_large.append(Rejection(layout, "memory", memory[3] / GIB, room / GIB, "GiB", ""))
            continue
        candidate = price(question, layout, memory)
        late = over_limits(question, candidate)
        if late is not None:
            found.rejected.append(late)
        else:
            found.candidates.append(candidate)
    found.candidates.sort(key=lambda c: order(question, c))
    found.rejected += with_nearest(too_large, found.candidates) if explain else too_large
    return found


def with_nearest(too_large: Sequence[Rejection], candidates: Sequence[Candidate]) -> list[Rejection]:
    """What does not fit, each cut with the candidate that comes nearest."""
    cuts = best_by_cut(candidates)[:MOST_NEAR]
    near_to: dict[Layout, str] = {}
    found = []
    for one in too_large:
        bare = one.layout.cut
        if bare not in near_to:
            near = nearest(one.layout, cuts)
            near_to[bare] = f"nearest: {near.layout}" if near else "nothing fits here"
        found.append(replace(one, nearest=near_to[bare]))
    return found


def price(
    question: Question, layout: Layout, memory: Memory | None = None, idle_s: float | None = None
) -> Candidate:
    """A layout's predicted step, memory (where it is not known already) and money, with their uncertainty.

    ``idle_s``: the waiting of its schedule, where that was run.
    """
    work, cluster, speeds = question.facts.work, question.cluster, question.speeds
    found = estimate(layout, work, speeds, cluster, memory, idle_s)
    world = layout.world_size
    spread = chance.sigma(found.seconds, sigmas(question, found))
    low, mid, high = chance.interval(found.step_s, spread)
    tokens_per_s = question.facts.tokens_per_step / mid
    steps = question.facts.steps
    overhead = float(question.overhead(world, mid))
    of_steps = None if steps is None else steps * overhead / 3600
    hours = None if of_steps is None else (low * of_steps, mid * of_steps, high * of_steps)
    parts = {} if hours is None else money.usd_parts(cluster, hours[1], world, moved_bytes(question))
    limit = memory_limit(question, layout)
    peak = speeds.peak_flops(world) * (min(world, cluster.devices) if cluster.is_cpu else world)
    return Candidate(
        layout=layout,
        step_s=(low, mid, high),
        tokens_per_s=tokens_per_s,
        mfu=question.facts.flops_token * tokens_per_s / peak if peak else 0.0,
        memory_gib=(found.allocated_bytes / GIB, found.reserved_bytes / GIB, found.device_bytes / GIB),
        p_oom=chance.exceeds(found.device_bytes, limit, MEMORY_SIGMA),
        usd=sum(parts.values()) if parts else None,
        hours=hours,
        terms={f"{part}_s": value for part, value in found.seconds.items()}
        | {
            "hidden_s": found.hidden_s,
            "padding_s": found.padding_s,
            "recompute_s": found.recompute_s,
            "sent_bytes": found.sent_bytes,
        },
        scope=cluster.scope(world),
        goodput=1 / overhead,
        usd_parts=parts,
    )


def memory_limit(question: Question, layout: Layout) -> int:
    """Bytes that one rank of a layout may use."""
    return question.cluster.memory_of_rank(question.cluster.ranks_on_host(layout.world_size))


def rank_key(question: Question, candidate: Candidate) -> float:
    """What the objective makes small."""
    size, world = candidate.memory_gib[2] * GIB, candidate.layout.world_size
    limit = memory_limit(question, candidate.layout) or math.inf
    return float(weigh(question, candidate.step_s[1], size, world, limit))


def order(question: Question, candidate: Candidate) -> tuple[Any, ...]:
    """By the objective; of equals the simplest first."""
    return float(f"{rank_key(question, candidate):.10g}"), simplicity(candidate.layout)


def over_limits(question: Question, candidate: Candidate) -> Rejection | None:
    """A rejection when the run would be late or too dear at the upper end of its interval."""
    if candidate.hours is None:
        return None
    hours = candidate.hours[2]
    if question.deadline_s is not None and hours * 3600 > question.deadline_s:
        limit = question.deadline_s / 3600
        return Rejection(candidate.layout, "deadline", hours, limit, "h", "more devices or fewer steps")
    if question.budget_usd is not None and candidate.usd is not None:
        world = candidate.layout.world_size
        usd = money.usd(question.cluster, hours, world, moved_bytes(question))
        if usd is not None and usd > question.budget_usd:
            return Rejection(
                candidate.layout, "cost", usd, question.budget_usd, "$", "fewer devices or steps"
            )
    return None


def nearest(layout: Layout, candidates: Sequence[Candidate]) -> Candidate | None:
    """The candidate most like a layout: as many ranks first, then the same axes, then the micro-batch."""

    logs, axes = _logs(layout), range(1, len(NEAR_AXES) + 1)
    cut = [i for i in axes if logs[i]]
    whole = [i for i in axes if not logs[i]]

    def unlike(candidate: Candidate) -> tuple[float, ...]:
        other = _logs(candidate.layout)
        return (
            abs(other[0] - logs[0]),
            sum(abs(other[i] - logs[i]) for i in cut),
            sum(other[i] > 0 for i in whole),
            candidate.layout.zero != layout.zero,
            abs(other[-1] - logs[-1]),
            candidate.step_s[1],
        )

    return min(candidates, key=unlike, default=None)


NEAR_AXES = ("fsdp", "tp", "pp", "cp", "ep")


@lru_cache(maxsize=4096)
def _logs(layout: Layout) -> tuple[float, ...]:
    """Logarithms of the world size, of the degrees and of the micro-batch."""
    degrees = (layout.world_size, *(layout.degree(axis) for axis in NEAR_AXES), layout.mbs or 1)
    return tuple(map(math.log, degrees))


def best_by_cut(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The best micro-batch of each cut, in order; the rest are its slower siblings."""
    seen: dict[Layout, Candidate] = {}
    for candidate in candidates:
        seen.setdefault(candidate.layout.cut, candidate)
    return list(seen.values())


def decide(question: Question, candidates: Sequence[Candidate]) -> tuple[Candidate, dict[str, Candidate]]:
    """The chosen candidate, and the best of each scope; ``candidates`` is not empty and in order."""
    several: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        several.setdefault(candidate.scope, []).append(candidate)
    scopes = {scope: _simplest(question, found) for scope, found in several.items()}
    ordered = [scopes[scope] for scope in SCOPES if scope in scopes]
    best = ordered[0]
    for wider in ordered[1:]:
        if _better(question, wider, best):
            best = wider
    return best, {scope: scopes[scope] for scope in SCOPES if scope in scopes}


def _simplest(question: Question, ordered: Sequence[Candidate]) -> Candidate:
    """Of one scope's candidates the simplest than which the best is not clearly better."""
    best, *others = ordered
    plainest = plainness(best.layout)
    found = best
    for other in others:
        key = plainness(other.layout)
        if key < plainest and not _better(question, best, other):
            found, plainest = other, key
    return found


def _better(question: Question, wider: Candidate, best: Candidate) -> bool:
    gain = 1 - rank_key(question, wider) / rank_key(question, best)
    if gain < WORTH:
        return False
    return question.objective == "memory" or chance_faster(question, wider, best) >= SURE


def chance_faster(question: Question, a: Candidate, b: Candidate) -> float:
    """Probability that ``a`` beats ``b``: in seconds, or in device-seconds when cost is the objective."""
    times = [
        money.weight(question.cluster, c.layout.world_size) if question.objective == "cost" else 1
        for c in (a, b)
    ]
    parts = [{p: c.terms[f"{p}_s"] * n for p in chance.PARTS} for c, n in zip((a, b), times, strict=True)]
    return chance.faster(parts[0], parts[1], question.speeds.sigma)


def verdicts(question: Question, best: Candidate, others: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with their verdict: chosen, tied with 1, slower or another scope not needed."""
    told = []
    for candidate in others:
        if candidate.layout == best.layout:
            told.append(replace(candidate, verdict="chosen"))
            continue
        p = chance_faster(question, candidate, best)
        word = "dearer" if question.objective == "cost" else "slower"
        if question.objective == "memory":
            verdict = "larger" if candidate.memory_gib[2] > best.memory_gib[2] else "smaller, wider scope"
        elif p >= 0.1:
            verdict = f"tied with 1 ({p:.0%} to be {'cheaper' if word == 'dearer' else 'faster'})".replace(
                "%", " %"
            )
        else:
            verdict = word
        told.append(replace(candidate, verdict=verdict))
    return told

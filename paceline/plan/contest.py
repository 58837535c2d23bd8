"""The best layouts of a plan after they were run for some steps each: what was measured decides between them.

Two medians that repeated sampling cannot tell apart are tied, and of those the simplest wins, as among predictions.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.answer import Candidate, Plan
from paceline.plan.digits import three
from paceline.plan.layout import Layout
from paceline.plan.money import usd_parts
from paceline.plan.weigh import plainness

RESAMPLES = 400
SURE = 0.9
WORTH = 0.02


@dataclass(frozen=True)
class Timing:
    """What running a layout gave.

    Attributes:
        steps_s: seconds of its steps, those of the start left out.
        parts_s: seconds of a step by the planner's parts, as the ledgers of its ranks have them.
        memory_gib: largest peak of a rank, reserved.
        failed: why it could not be run; empty when it could. code: the exit code that this ended with.
    """

    steps_s: tuple[float, ...] = ()
    parts_s: Mapping[str, float] = field(default_factory=dict)
    memory_gib: float = 0.0
    failed: str = ""
    code: int = 0

    @property
    def middle_s(self) -> float:
        """Median seconds of a step."""
        return median(self.steps_s)


def chance_faster(a: Sequence[float], b: Sequence[float], seed: int = 0) -> float:
    """Probability, over resamples of both (bootstrap), that the median of ``a`` is the smaller one."""
    draw = random.Random(seed)
    wins = 0.0
    for _ in range(RESAMPLES):
        one, other = median(draw.choices(a, k=len(a))), median(draw.choices(b, k=len(b)))
        wins += 1.0 if one < other else 0.5 if one == other else 0.0
    return wins / RESAMPLES


def contestants(plan: Plan, most: int) -> list[Candidate]:
    """Whom to run: the chosen one, the best of every other scope, then the next in order; at most ``most``."""
    found: dict[Layout, Candidate] = {plan.best.layout: plan.best}
    for candidate in (*plan.scopes.values(), *plan.candidates):
        found.setdefault(candidate.layout, candidate)
    return list(found.values())[:most]


def decided(plan: Plan, timings: Mapping[Layout, Timing]) -> Plan:
    """The plan with what was measured in the place of what was predicted, and the best measured as its choice.

    Args:
        plan: its candidates hold (at least) the layouts of ``timings``, or its scopes do.
        timings: by layout; one that failed stays in the table with its reason.

    Raises:
        Refused: when none could be run, with the code that most of them ended with (11 where they said none); 12 when
            none of those that ran meets the deadline or the budget.
    """
    known = {c.layout: c for c in (*plan.scopes.values(), *plan.candidates)}
    ran = [_as_measured(plan, known[one], t) for one, t in timings.items() if not t.failed]
    broken = [replace(known[one], verdict=t.failed) for one, t in timings.items() if t.failed]
    if not ran:
        codes = Counter(timing.code for timing in timings.values() if timing.code)
        raise Refused(
            "no layout could be run",
            exit_code=Exit(codes.most_common(1)[0][0]) if codes else Exit.MEMORY,
            key="--measure",
            seen=" · ".join(f"{c.layout}: {c.verdict}" for c in broken),
            rule="what is chosen by measurement has run for some steps",
            use="mend what they failed of, or paceline plan without --measure",
        )
    within = [c for c in ran if not _over(plan, c)] or _refuse_late(plan, ran)
    within.sort(key=lambda c: _key(plan, c))
    best = _simplest(plan, within, timings)
    told = sorted(
        (_told(plan, c, best, timings) for c in ran), key=lambda c: (c.layout != best.layout, _key(plan, c))
    )
    others = [c for c in plan.candidates if c.layout not in timings]
    return replace(
        plan,
        best=told[0],
        candidates=[*told, *broken, *(replace(c, verdict="not run") for c in others)],
        scopes={c.scope: c for c in reversed(told)},
        reason=_reason(plan, told, timings),
    )


def _as_measured(plan: Plan, predicted: Candidate, timing: Timing) -> Candidate:
    ordered = sorted(timing.steps_s)
    last = len(ordered) - 1
    low, mid, high = ordered[round(0.05 * last)], timing.middle_s, ordered[round(0.95 * last)]
    times = predicted.step_s[1] / mid
    of_steps = None if plan.facts.steps is None else plan.facts.steps / predicted.goodput / 3600
    work, world = plan.facts.work, predicted.layout.world_size
    moved = work.count.total * work.master_bytes
    parts = {} if of_steps is None else usd_parts(plan.cluster, mid * of_steps, world, moved)
    return replace(
        predicted,
        predicted_s=predicted.step_s,
        step_s=(low, mid, high),
        tokens_per_s=predicted.tokens_per_s * times,
        mfu=predicted.mfu * times,
        usd=sum(parts.values()) if parts else None,
        usd_parts=parts,
        hours=None if of_steps is None else (low * of_steps, mid * of_steps, high * of_steps),
        measured_gib=timing.memory_gib or None,
    )


def _key(plan: Plan, candidate: Candidate) -> float:
    """What the objective makes small, of what was measured."""
    if plan.objective == "memory":
        return candidate.measured_gib or candidate.memory_gib[1]
    return candidate.step_s[1] * (candidate.layout.world_size if plan.objective == "cost" else 1)


def _over(plan: Plan, candidate: Candidate) -> bool:
    limits = plan.job.layout
    late = limits.deadline is not None and candidate.hours is not None
    dear = limits.budget_usd is not None and candidate.usd is not None
    return bool(
        (late and candidate.hours[1] * 3600 > limits.deadline)  # type: ignore[index,operator]
        or (dear and candidate.usd > limits.budget_usd)  # type: ignore[operator]
    )


def _refuse_late(plan: Plan, ran: Sequence[Candidate]) -> list[Candidate]:
    fastest = min(ran, key=lambda c: c.step_s[1])
    raise Refused(
        "measured, no layout meets the deadline or the budget",
        exit_code=Exit.DEADLINE,
        key="layout.deadline" if plan.job.layout.deadline is not None else "layout.budget_usd",
        seen=f"{fastest.layout}: {three(fastest.step_s[1])} s a step measured, {three((fastest.hours or (0, 0))[1])} h",
        rule="the measured time of all steps lies inside the limit",
        use="fewer steps, a later deadline or a larger budget",
    )


def _simplest(plan: Plan, ordered: Sequence[Candidate], timings: Mapping[Layout, Timing]) -> Candidate:
    """The plainest than which the best is not clearly better."""
    best = ordered[0]
    tied = [c for c in ordered if not _clearly(plan, best, c, timings)]
    return min([best, *tied], key=lambda c: (plainness(c.layout), _key(plan, c)))


def _clearly(plan: Plan, a: Candidate, b: Candidate, timings: Mapping[Layout, Timing]) -> bool:
    if 1 - _key(plan, a) / _key(plan, b) < WORTH:
        return False
    return plan.objective == "memory" or _chance(plan, a, b, timings) >= SURE


def _chance(plan: Plan, a: Candidate, b: Candidate, timings: Mapping[Layout, Timing]) -> float:
    weighed = [
        [s * (c.layout.world_size if plan.objective == "cost" else 1) for s in timings[c.layout].steps_s]
        for c in (a, b)
    ]
    return chance_faster(weighed[0], weighed[1])


def _told(plan: Plan, candidate: Candidate, best: Candidate, timings: Mapping[Layout, Timing]) -> Candidate:
    if candidate.layout == best.layout:
        return replace(candidate, verdict="chosen")
    if _over(plan, candidate):
        return replace(candidate, verdict="over the limit")
    if plan.objective == "memory":
        return replace(
            candidate, verdict="larger" if _key(plan, candidate) > _key(plan, best) else "tied with 1"
        )
    p = _chance(plan, candidate, best, timings)
    word = "cheaper" if plan.objective == "cost" else "faster"
    slower = "dearer" if plan.objective == "cost" else "slower"
    tied = p >= 1 - SURE or not _clearly(plan, best, candidate, timings)
    return replace(candidate, verdict=f"tied with 1 ({p * 100:.0f} % to be {word})" if tied else slower)


def _reason(plan: Plan, told: Sequence[Candidate], timings: Mapping[Layout, Timing]) -> str:
    best = told[0]
    said = f"{best.layout}: measured {three(best.step_s[1])} s a step over {len(timings[best.layout].steps_s)} steps"
    if len(told) < 2:
        return said
    next_best = min(told[1:], key=lambda c: c.step_s[1])
    return f"{said}, {three(next_best.step_s[1])} for {next_best.layout}"

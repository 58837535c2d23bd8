"""Which assumption, changed by how much, changes the choice: the factor nearest to 1, up and down.

The search is not done again. What leads it is priced anew under each changed number: the chosen, the shown, the best
of each scope and of each family, and what nearly fits; then the same decision is taken among them. A layout that no
list has cannot win here, so the figures say how far the choice stands *among the leading layouts*. A step whose
pipeline was run action by action keeps its ratio to the closed form.

Nothing of this runs for an ordinary plan: it is asked for by ``--what-if sensitivity``, ``--json`` and the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from paceline.plan.answer import Candidate, Plan
from paceline.plan.assumptions import Assumption, assumptions
from paceline.plan.cost.step import Memory, estimate, memory_of
from paceline.plan.decide import best_by_cut, decide, memory_limit, order, over_limits, price, rank_key
from paceline.plan.digits import three
from paceline.plan.enumerate import with_micro_batches
from paceline.plan.layout import Layout
from paceline.plan.rehearse import Rehearsal
from paceline.plan.rules import first_broken
from paceline.plan.weigh import Question, family, fits

MOST = 16.0
"""Factors beyond this, up or down, are not looked at: a number that is so wrong is another machine's."""
STEPS = 8  # to MOST, as equal factors; within the first that changes the choice the place is bisected
HALVINGS = 9
FAMILIES, SHOWN, NEAR_MISSES = 10, 8, 8


@dataclass(frozen=True)
class Turn:
    """At ``factor`` times an assumption another layout is chosen, at ``inside`` times it is still this one.

    ``layout`` is None where none of the leading layouts fits or is in time; ``step_s``: seconds of what is chosen.
    """

    factor: float
    inside: float
    layout: Layout | None
    step_s: float | None


@dataclass(frozen=True)
class Row:
    """An assumption with the nearest turns below and above it; None = never down to 1/16, or up to 16 times."""

    assumption: Assumption
    down: Turn | None
    up: Turn | None

    def to_dict(self) -> dict[str, Any]:
        one = self.assumption

        def turn(found: Turn | None) -> dict[str, Any] | None:
            if found is None:
                return None
            layout = None if found.layout is None else str(found.layout)
            value = one.value * found.factor
            return {"factor": found.factor, "value": value, "layout": layout, "step_s": found.step_s}

        return {
            "assumption": one.name,
            "value": one.value,
            "unit": one.unit,
            "down": turn(self.down),
            "up": turn(self.up),
            "looked_at": [1 / MOST, MOST],
        }

    def __str__(self) -> str:
        found = [_words(self.assumption, turn) for turn in (self.down, self.up) if turn is not None]
        never = f"never between 1/{MOST:.0f} and {MOST:.0f} times"
        if len(found) == 1:
            never = f"never {'down to 1/16' if self.down is None else 'up to 16 times'}"
            found.append(never)
        return f"{self.assumption.name} {self.assumption.text()}: {' · '.join(found) or never}"


def sensitivity(plan: Plan) -> list[Row]:
    """A row for each number that the plan rests on; none where the layout was asked for: then nothing was chosen."""
    question = plan.question
    if question is None or not plan.auto:
        return []
    leading = Leading(question, plan)
    return [Row(one, *(leading.turn(one, up) for up in (False, True))) for one in assumptions(question)]


class Leading:
    """The leading layouts of a plan, and what is chosen among them under a changed assumption."""

    def __init__(self, question: Question, plan: Plan) -> None:
        self.question = question
        self.layouts = leading(plan)
        self.chosen = plan.best.layout.cut
        known = {candidate.layout: candidate for candidate in plan.priced}
        rehearsal = Rehearsal(question)
        self._ratio: dict[Layout, float] = {}
        for layout in self.layouts:
            if layout.pp > 1:
                plain = price(question, layout)
                run = known.get(layout) or rehearsal.again(plain)
                if run is not None and run.step_s != plain.step_s:
                    self._ratio[layout] = run.step_s[1] / plain.step_s[1]
        self._settle(known)

    def _settle(self, known: Mapping[Layout, Candidate]) -> None:
        """Leave out what would win as things are: the search pruned it by its closed form, and did not take it."""
        best: dict[str, float] = {}
        for candidate in known.values():
            best.setdefault(candidate.scope, rank_key(self.question, candidate))
        for layout in [one for one in self.layouts if one not in known]:
            now = self._priced(self.question, layout)
            if now is not None and rank_key(self.question, now) < best.get(now.scope, 0.0):
                self.layouts.remove(layout)
        found = self.choice(self.question)
        while found is not None and found.layout.cut != self.chosen and found.layout not in known:
            self.layouts.remove(found.layout)
            found = self.choice(self.question)
        if found is None or found.layout.cut != self.chosen:
            self.layouts = [layout for layout in self.layouts if layout in known]

    def choice(self, question: Question) -> Candidate | None:
        """What is decided among the leading layouts; None where none of them fits or is in time."""
        found = []
        for layout in self.layouts:
            candidate = self._priced(question, layout)
            if candidate is not None:
                found.append(candidate)
        found.sort(key=lambda candidate: order(question, candidate))
        return decide(question, found)[0] if found else None

    def turn(self, one: Assumption, up: bool) -> Turn | None:
        """The factor nearest to 1, above or below it, at which the choice is another."""
        step = math.log(MOST) / STEPS * (1 if up else -1)

        @cache
        def other(log: float) -> Candidate | bool | None:
            """False where the choice stands."""
            found = self.choice(one.changed(self.question, math.exp(log)))
            stands = found is not None and found.layout.cut == self.chosen
            return False if stands else found

        turned = first_turn(lambda log: other(log) is not False, step)
        if turned is None:
            return None
        inside, outside = turned
        found = other(outside)
        layout, seconds = (found.layout, found.step_s[1]) if isinstance(found, Candidate) else (None, None)
        return Turn(math.exp(outside), math.exp(inside), layout, seconds)

    def _priced(self, question: Question, layout: Layout) -> Candidate | None:
        memory = memory_of(layout, question.facts.work, question.speeds, question.cluster)
        if not fits(memory[3], memory_limit(question, layout)):
            return None
        ratio = self._ratio.get(layout)
        idle_s = None if ratio is None else _idle_s(question, layout, memory, ratio)
        candidate = price(question, layout, memory, idle_s)
        return None if over_limits(question, candidate) is not None else candidate


def first_turn(changed: Callable[[float], bool], step: float) -> tuple[float, float] | None:
    """(last place where nothing changed, first where it did) on the way from 0 in ``STEPS`` steps; None = nowhere."""
    inside = 0.0
    for number in range(1, STEPS + 1):
        outside = number * step
        if changed(outside):
            break
        inside = outside
    else:
        return None
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if changed(middle) else (middle, outside)
    return inside, outside


SIZED = 4
"""Of so many cuts every micro-batch is among the leading layouts."""


def leading(plan: Plan) -> list[Layout]:
    """The layouts among which a changed assumption is judged, each once."""
    question = plan.question
    assert question is not None
    found = [candidate.layout for candidate in (plan.best, *plan.scopes.values(), *plan.candidates)]
    # Of slower devices or less memory another micro-batch of the same cut is the first to be better.
    for layout in (plan.best.layout, *(c.layout for c in best_by_cut(plan.priced)[:SIZED])):
        found += with_micro_batches(layout.cut, question.facts.work)
    found += [next(c.layout for c in plan.priced if c.scope == scope) for scope in plan.scopes]
    found += [c.layout for c in best_by_cut(plan.priced)[:SHOWN]]
    found += _firsts((c.layout for c in plan.priced), FAMILIES)
    slower = sorted((r for r in plan.rejected if r.kind in ("slower", "cost")), key=lambda r: r.value)
    found += _firsts((r.layout for r in slower), FAMILIES)
    large = sorted((r for r in plan.rejected if r.kind == "memory"), key=lambda r: r.value / r.limit)
    found += _firsts((r.layout for r in large), NEAR_MISSES)
    found += [c.layout for c in sorted(plan.priced, key=lambda c: c.memory_gib[2])[:2]]
    return [one for one in dict.fromkeys(found) if first_broken(one, question.rule_facts) is None]


def _firsts(layouts: Iterable[Layout], most: int) -> list[Layout]:
    """The first of each family and number of ranks, ``most`` of them."""
    found: dict[tuple[str, int], Layout] = {}
    for layout in layouts:
        found.setdefault((family(layout), layout.world_size), layout)
    return list(found.values())[:most]


def _idle_s(question: Question, layout: Layout, memory: Memory, ratio: float) -> float:
    """The waiting with which a step is ``ratio`` times as long as the closed form says."""
    asked = layout, question.facts.work, question.speeds, question.cluster, memory
    closed, without = estimate(*asked), estimate(*asked, 0.0)
    return max(0.0, float(ratio * closed.step_s - without.step_s))


def _words(one: Assumption, turn: Turn) -> str:
    times = f"× {three(turn.factor)} ({one.text(turn.factor)})"
    if turn.layout is None:
        return f"{times} → none of the leading layouts can"
    return f"{times} → {turn.layout.cut}, {three(turn.step_s or 0.0)} s a step"


def lines(rows: Sequence[Row]) -> list[str]:
    """The table as text, what turns soonest first."""

    def soonest(row: Row) -> float:
        logs = [abs(math.log(turn.factor)) for turn in (row.down, row.up) if turn is not None]
        return min(logs, default=math.inf)

    return [str(row) for row in sorted(rows, key=soonest)]

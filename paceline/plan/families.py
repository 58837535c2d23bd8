"""The families of a plan: how many layouts each has, what became of them, and its best member with its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from paceline.plan.answer import Candidate, Plan, Rejection
from paceline.plan.census import few_of
from paceline.plan.decide import judge, order, rank_key, with_nearest
from paceline.plan.layout import Layout
from paceline.plan.reasons import objective, wins_when
from paceline.plan.relax import relaxations
from paceline.plan.rules import repair
from paceline.plan.weigh import Question, family, unit

NEAR = ("deadline", "cost", "slower", "memory", "rule")
"""Kinds of rejection, what comes nearest to being chosen first."""
FULLER = "none of its layouts was near: the best of a few that were priced for this table"


@dataclass(frozen=True)
class Family:
    """``counts``: rejections by kind; with ``listed`` candidates they add up to ``layouts``.

    ``best``: kind, layout, value, limit, unit and what is nearest, of its member that came closest; ``relaxed``: what
    would make it fit; ``note`` says where it is not the best of all of them.
    """

    name: str
    layouts: int
    listed: int
    counts: dict[str, int]
    best: Rejection | None
    relaxed: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        best = None if self.best is None else self.best.to_dict()
        found = {"family": self.name, "layouts": self.layouts, "listed": self.listed, "rejected": self.counts}
        return found | {"best": best, "relaxed": self.relaxed, "note": self.note}


def families(plan: Plan) -> list[Family]:
    """Every family, those with the best members first; their counts add up to those of the search."""
    question, census = plan.question, plan.census
    if question is None or census is None:
        return []
    tallies = census.families()
    known = _known(question, plan)
    missing = {name for name in tallies if name not in known}
    few = _few(question, plan, missing) if missing else {}
    found = []
    for name, tally in tallies.items():
        listed = sum(family(c.layout) == name for c in plan.candidates)
        best = known.get(name) or few.get(name)
        told = _explained(question, plan, best)
        note = FULLER if name in few else ""
        found.append(Family(name, tally.divide, listed, tally.rejected(listed), *told, note))
    return sorted(found, key=_nearest_first)


def _known(question: Question, plan: Plan) -> dict[str, Rejection]:
    """The member of each family that came closest, of those that the search remembers."""
    found: dict[str, Rejection] = {}
    for candidate in plan.priced:
        found.setdefault(family(candidate.layout), _against(question, plan.best, candidate))
    for one in sorted(plan.rejected, key=_how_near):
        found.setdefault(family(one.layout), one)
    return found


def _against(question: Question, best: Candidate, candidate: Candidate) -> Rejection:
    """A candidate beside the chosen."""
    kind = "cost" if question.objective == "cost" else "slower"
    value, limit = objective(question, candidate), objective(question, best)
    near = "chosen" if candidate.layout == best.layout else wins_when(candidate, best)
    return Rejection(candidate.layout, kind, value, limit, unit(question), near)  # type: ignore[arg-type]


def _how_near(one: Rejection) -> tuple[int, float]:
    return NEAR.index(one.kind), one.value / one.limit if one.limit else 0.0


def _few(question: Question, plan: Plan, names: set[str]) -> dict[str, Rejection]:
    """Of families that the search left alone as a whole: the best of a few members."""
    assert plan.census is not None
    found: dict[str, Rejection] = {}
    for space in reversed(plan.census.spaces):  # the widest first
        left = {name for name in names if name not in found}
        for name, layouts in few_of(space, left, space.worlds[-1]).items() if left else ():
            best = _best_of(question, plan.best, layouts)
            if best is not None:
                found[name] = best
    return found


def _best_of(question: Question, best: Candidate, layouts: Iterable[Layout]) -> Rejection | None:
    judged = judge(question, layouts, explain=False)
    if judged.candidates:
        first = min(judged.candidates, key=lambda c: (rank_key(question, c), order(question, c)))
        return _against(question, best, first)
    return min(judged.rejected, key=_how_near, default=None)


def _explained(question: Question, plan: Plan, one: Rejection | None) -> tuple[Rejection | None, str]:
    """With what comes nearest where that is not said yet, and what would make it fit."""
    if one is None or one.kind not in ("memory", "rule"):
        return one, ""
    if one.kind == "memory":
        one = one if one.nearest else with_nearest([one], plan.priced)[0]
        return one, relaxations(question, one.layout)
    return replace(one, nearest=one.nearest or str(repair(one.layout, question.rule_facts))), ""


def _nearest_first(one: Family) -> tuple[Any, ...]:
    if one.best is None:
        return 9, 0.0, one.name
    kind, near = _how_near(one.best)
    return (0 if one.best.kind in ("slower", "cost") else kind), near, one.name

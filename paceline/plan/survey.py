"""All layouts of a question, scope by scope: a small space is priced one by one, a large one is sifted.

Either way the best come back as candidates, priced in full, and every other layout is in the tally, with the nearest
misses of each family among the rejections. numpy is imported for a large space only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from paceline.plan.answer import GIB, Rejection
from paceline.plan.census import of_list
from paceline.plan.cost.step import Memory, memory_of
from paceline.plan.decide import Judged, judge, memory_limit, order, over_limits, price, with_nearest
from paceline.plan.enumerate import Space, scopes
from paceline.plan.layout import Layout
from paceline.plan.reasons import objective, wins_when
from paceline.plan.rules import first_broken, repair
from paceline.plan.speed.columns import ColumnSpeeds
from paceline.plan.tally import Tally
from paceline.plan.weigh import Question, family, fits

FEW = 500
MANY = 100_000
KEPT, KEPT_OF_MANY = 48, 200
"""Layouts of a scope that are priced in full and rehearsed: of up to ``MANY``, and of more."""


def survey(question: Question, options: Layout, *, narrow: bool = False, keep: int = 0) -> Judged:
    """The best layouts of each scope in order, and what became of the others.

    Args:
        options: ``auto``, with what is asked for beside it. keep: of each scope; 0: as many as it is worth.
        narrow: a part of the space, and no reasons: for a question beside the question.
    """
    found = Judged()
    question = replace(question, speeds=remembering(question))
    for space in scopes(question.cluster, question.facts.work, options, narrow=narrow):
        if question.residency and question.cluster.scope(space.worlds[-1]) == "cluster":
            found.tally += Tally(divide=space.total[0], refused=space.total[0])
            found.rejected.append(_pooled(question, space))
            continue
        one = _one_by_one(question, space) if space.total[0] <= FEW else _sifted(question, space, keep)
        found.candidates += one.candidates
        found.rejected += one.rejected
        found.tally += one.tally
        found.census += one.census
    found.candidates.sort(key=lambda candidate: order(question, candidate))
    if not narrow:
        found.rejected = _explained(question, found)
    return found


def remembering(question: Question) -> ColumnSpeeds:
    """The question's speeds, each asked once."""
    if isinstance(question.speeds, ColumnSpeeds):
        return question.speeds
    return ColumnSpeeds(question.speeds, shared=question.cluster.is_cpu)


def _pooled(question: Question, space: Space) -> Rejection:
    """All layouts over several hosts, in the name of the smallest data-parallel one: raw data would leave its place."""
    layout = Layout(dp=min(space.worlds))
    broken = first_broken(layout, question.rule_facts)
    why = f"data.residency: {broken[1]}" if broken else ""
    return Rejection(layout, "rule", 0.0, 0.0, "", "nearest: paceline federate", why)


def _one_by_one(question: Question, space: Space) -> Judged:
    known: dict[Layout, Memory] = {}
    layouts = _needed(question, space.layouts(), known) if space.narrow else space.layouts()
    found = judge(question, layouts, explain=False, known=known)
    found.tally, found.census = tally_of(found), of_list(found.by_kind())
    return found


def _needed(question: Question, layouts: Iterable[Layout], known: dict[Layout, Memory]) -> Iterator[Layout]:
    """Without those that compute again although they fit without: they are never the best in time or cost.

    ``known`` is given the memory that was asked for.
    """
    roomy: set[Layout] = set()
    for layout in layouts:
        if layout.recompute == "none" and question.objective != "memory":
            known[layout] = memory_of(layout, question.facts.work, question.speeds, question.cluster)
            if fits(known[layout][3], memory_limit(question, layout)):
                roomy.add(layout)
        elif layout.replace(recompute="none") in roomy:
            continue
        yield layout


def tally_of(judged: Judged) -> Tally:
    """Of layouts that were all priced."""
    kinds = [rejection.kind for rejection in judged.rejected]
    refused = kinds.count("rule")
    return Tally(
        divide=len(judged.candidates) + len(kinds),
        refused=refused,
        scored=len(judged.candidates) + len(kinds) - refused,
        unfit=kinds.count("memory"),
        late=kinds.count("deadline") + kinds.count("cost"),
    )


def _sifted(question: Question, space: Space, keep: int) -> Judged:
    from paceline.plan.rehearse import Rehearsal
    from paceline.plan.sift import sift

    keep = keep or (KEPT if space.total[0] <= MANY else KEPT_OF_MANY)
    found = sift(question, space, keep)
    candidates = [price(question, layout) for _, layout in found.best]
    if space.narrow:
        return Judged(candidates, found.misses, found.tally, found.census)
    rehearsal = Rehearsal(question)
    again = [rehearsal.again(candidate) for candidate in candidates]
    simulated = sum(one is not None for one in again)
    told = [new or old for new, old in zip(again, candidates, strict=True)]
    return Judged(told, found.misses, replace(found.tally, simulated=simulated), found.census)


def _explained(question: Question, judged: Judged) -> list[Rejection]:
    """The rejections with their figures in full, and what comes nearest or would make them win."""
    told = [_exact(question, judged, one) for one in judged.rejected]
    memory = [one for one in told if one is not None and one.kind == "memory"]
    others = [one for one in told if one is not None and one.kind != "memory"]
    return [*_repaired(question, others), *with_nearest(memory, judged.candidates)]


def _exact(question: Question, judged: Judged, one: Rejection) -> Rejection | None:
    """A bound made the figure of the layout itself."""
    if one.kind in ("rule", "deadline") or one.nearest:
        return one
    if first_broken(one.layout, question.rule_facts) is not None:
        return None
    memory = memory_of(one.layout, question.facts.work, question.speeds, question.cluster)
    room = memory_limit(question, one.layout)
    if not fits(memory[3], room):
        return replace(one, kind="memory", value=memory[3] / GIB, limit=room / GIB, unit="GiB")
    candidate = price(question, one.layout, memory)
    late = over_limits(question, candidate)
    if late is not None or not judged.candidates:
        return late
    best = judged.candidates[0]
    value, limit = objective(question, candidate), objective(question, best)
    return replace(one, value=value, limit=limit, nearest=wins_when(candidate, best))


def _repaired(question: Question, rejected: Iterable[Rejection]) -> list[Rejection]:
    """What the book refuses, with the nearest that runs for the first of each family."""
    seen: set[str] = set()
    told = []
    for one in rejected:
        name = family(one.layout)
        if one.kind == "rule" and not one.nearest and name not in seen:
            seen.add(name)
            one = replace(one, nearest=str(repair(one.layout, question.rule_facts)))
        told.append(one)
    return told

"""The layout nearest to one that the rule book refuses, by search: the first that runs, in order of distance.

The distance is a sum. Each degree taken down: ½ and the doublings between old and new, for ep and etp, which add no
ranks, ½ and half of them. Each kind, schedule (its stages per rank go with it) or option changed: ½. Stages per rank
alone: ⅛ a doubling. The micro-batch: 1/16 a doubling, and half of the share of a rank's rows that are then padding.
No degree grows, since nobody who asked for eight ranks has more of them for sure; of equally near layouts the one
that keeps tp, then pp, cp, ep, dp, fsdp.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paceline.plan import degrees
from paceline.plan.broken import Facts
from paceline.plan.grammar import KINDS, OPTIONS
from paceline.plan.layout import V_SCHEDULES, Layout

CHANGED = 1 / 2
NO_RANKS = 1 / 2
STAGES = 1 / 8
MICRO_BATCH = 1 / 16
PADDING = 1 / 2
MOST_VALUES = 2048  # of one axis or micro-batch; of more only those that divide what was asked for
MOST_TRIED = 2000  # combinations that the book is asked about
MOST_PASSED = 20_000  # steps on the way to them


@dataclass(frozen=True)
class Choice:
    """One way to settle a part of a layout: what it sets, how far from what was asked, and the ranks that it takes."""

    distance: float
    ranks: int = 1
    sets: dict[str, Any] = field(default_factory=dict)


def nearest(layout: Layout, facts: Facts, runs: Callable[[Layout], bool]) -> Layout:
    """The nearest layout that ``runs``; the layout itself where it does.

    What divides the asked degrees is tried first, and then whatever is nearer; a search that would take long stops.

    Args:
        layout: closed. facts: they bound what is tried. runs: whether a layout keeps every rule.
    """
    if runs(layout):
        return layout
    found = _search(layout, facts, runs, _divisors, (math.inf, Layout()))
    return _search(layout, facts, runs, _down, found)[1]


Values = Callable[[int, int, Callable[[int], bool]], list[int]]


def _search(
    layout: Layout, facts: Facts, runs: Callable[[Layout], bool], values: Values, known: tuple[float, Layout]
) -> tuple[float, Layout]:
    """The nearest among the combinations of ``values``, with its distance; ``known`` where none is nearer."""
    (least, best), tried = known, 0
    most = facts.devices if facts.devices and not facts.cpu else 0
    for passed, found in enumerate(_in_order(_parts(layout, facts, values), most)):
        if found is None and passed < MOST_PASSED:
            continue
        if found is None or found[0] >= least or tried >= MOST_TRIED:
            break
        so_far, picked = found
        tried += 1
        bare = layout.replace(mbs=None, **{k: v for choice in picked for k, v in choice.sets.items()})
        if not runs(bare):
            continue
        for more, mbs in _micro_batches(layout, bare, facts):
            if so_far + more >= least:
                break
            tried += 1
            if runs(bare.replace(mbs=mbs)):
                least, best = so_far + more, bare.replace(mbs=mbs)
                break
    return least, best


def _in_order(
    parts: Sequence[Sequence[Choice]], most: int
) -> Iterator[tuple[float, tuple[Choice, ...]] | None]:
    """Every combination of a choice from each part, the nearest first; None for each step of the way there.

    The parts are sorted. A beginning that is already ``most`` ranks and more is not gone on with; 0 = no limit.
    """
    rest = [sum(part[0].distance for part in parts[n:]) for n in range(len(parts) + 1)]
    waiting: list[tuple[float, tuple[int, ...]]] = [(rest[0], ())]
    while waiting:
        so_far, at = heapq.heappop(waiting)
        picked = tuple(part[i] for part, i in zip(parts, at, strict=False))
        if at and at[-1] + 1 < len(parts[len(at) - 1]):
            farther = so_far + parts[len(at) - 1][at[-1] + 1].distance - picked[-1].distance
            heapq.heappush(waiting, (round(farther, 9), (*at[:-1], at[-1] + 1)))
        if most and math.prod(choice.ranks for choice in picked) > most:
            yield None
        elif len(at) == len(parts):
            yield so_far, picked
        else:
            heapq.heappush(waiting, (so_far, (*at, 0)))
            yield None


def _parts(layout: Layout, facts: Facts, values: Values) -> list[list[Choice]]:
    """The choices of each part, the nearest first; what no rule could allow on these facts is left out."""
    known, length = facts.widths, facts.sequence_length
    ranks = min(
        facts.devices if facts.devices and not facts.cpu else math.inf, facts.global_batch or math.inf
    )
    most = int(ranks) if ranks < math.inf else max(layout.dp, layout.fsdp)
    heads = set(degrees.tp_degrees(known)) if known else set()

    def cuts_layer(n: int) -> bool:
        return (known is None or (n in heads and n <= known.vocab_size)) and not (length and length % n)

    def cuts_row(n: int) -> bool:
        return n == 1 or not length or length % (2 * n) == 0

    return [
        [_degree("tp", layout.tp, n) for n in values(layout.tp, layout.tp, cuts_layer)],
        _depths(layout, facts, values),
        _kinds("cp", "cp_kind", layout, values(layout.cp, layout.cp, cuts_row), ("allgather",)),
        _experts(layout, facts, values),
        [_degree("dp", layout.dp, n) for n in values(layout.dp, most, _any)],
        _kinds("fsdp", "zero", layout, values(layout.fsdp, most, _any), ("zero2",)),
        *(
            [Choice(0.0), Choice(CHANGED, 1, {name: words[0]})]
            for name, words in OPTIONS.items()
            if words and getattr(layout, name) != words[0] and name != "recompute"
        ),
    ]


def _down(asked: int, most: int, fits: Callable[[int], bool]) -> list[int]:
    """What an axis may be taken down to, itself first."""
    if min(asked, most) > MOST_VALUES:
        return _divisors(asked, most, fits)
    return [n for n in range(min(asked, most), 0, -1) if n == 1 or fits(n)]


def _divisors(asked: int, most: int, fits: Callable[[int], bool]) -> list[int]:
    found = {*degrees.divisors(asked), *(1 << n for n in range(asked.bit_length()))}
    return [n for n in sorted(found, reverse=True) if n == 1 or (n <= most and fits(n))]


def _any(degree: int) -> bool:
    return True


def _taken(asked: int, degree: int) -> float:
    return 0.0 if asked == degree else CHANGED + math.log2(asked / degree)


def _spread(layout: Layout, ep: int, etp: int) -> float:
    pairs = (layout.ep, ep), (layout.etp, etp)
    return sum(CHANGED + NO_RANKS * math.log2(asked / n) for asked, n in pairs if asked != n)


def _degree(axis: str, asked: int, degree: int) -> Choice:
    return Choice(_taken(asked, degree), degree, {axis: degree})


def _kinds(
    axis: str, kind: str, layout: Layout, values: Sequence[int], instead: Sequence[str]
) -> list[Choice]:
    """Degree and kind of an axis: the asked kind, and those ``instead`` that run where it does not."""
    asked = getattr(layout, kind)
    found = [
        Choice(
            _taken(layout.degree(axis), degree) + (CHANGED if word != asked else 0.0),
            degree,
            {axis: degree, kind: word},
        )
        for degree in values
        for word in (dict.fromkeys((asked, *instead)) if degree > 1 else (asked,))
    ]
    return sorted(found, key=_far)


def _depths(layout: Layout, facts: Facts, values: Values) -> list[Choice]:
    """Degree of the pipeline, its schedule and the stages per rank, as far as there are layers for them."""
    layers = facts.widths.num_hidden_layers if facts.widths else 0
    found = []
    for pp in values(layout.pp, layers or layout.pp, _any):
        taken = _taken(layout.pp, pp)
        if pp == 1:
            found.append(Choice(taken, 1, {"pp": 1, "schedule": KINDS["pp"][0], "vpp": 0}))
            continue
        for schedule in dict.fromkeys((layout.schedule, "1f1b", "gpipe")):  # gpipe takes what any other does
            changed = schedule != layout.schedule
            for vpp in _vpps(schedule, layout.vpp, layers // pp if layers else 0):
                more = CHANGED if changed else STAGES * abs(math.log2(vpp / layout.vpp))
                found.append(Choice(taken + more, pp, {"pp": pp, "schedule": schedule, "vpp": vpp}))
    return sorted(found, key=_far)


def _vpps(schedule: str, asked: int, most: int) -> Sequence[int]:
    if schedule in V_SCHEDULES:
        return (2,)
    if schedule not in ("interleaved", "zero-bubble"):
        return (1,)
    return range(2, min(max(asked, 2), most) + 1) if most else sorted({2, max(asked, 2)})


def _experts(layout: Layout, facts: Facts, values: Values) -> list[Choice]:
    experts = facts.widths.num_experts if facts.widths else 0
    if facts.widths and not experts:
        return [Choice(_spread(layout, 1, 1), 1, {"ep": 1, "etp": 1})]
    found = [
        Choice(_spread(layout, ep, etp), 1, {"ep": ep, "etp": etp})
        for ep in values(layout.ep, experts or layout.ep, partial(_divides, experts))
        for etp in sorted({layout.etp, min(layout.tp, layout.etp), 1}, reverse=True)
    ]
    return sorted(found, key=_far)


def _divides(whole: int, degree: int) -> bool:
    return whole % degree == 0


def _micro_batches(layout: Layout, bare: Layout, facts: Facts) -> list[tuple[float, int | None]]:
    """(distance, micro-batch) of what the rows of a rank leave, the nearest first."""
    if layout.mbs is None or not facts.global_batch:
        return [(0.0, layout.mbs)]
    rows, asked = bare.data_rows(facts.global_batch), layout.mbs
    sizes = range(1, rows + 1) if rows <= MOST_VALUES else [*degrees.divisors(rows), min(asked, rows)]
    return sorted((_micro_batch(asked, n, rows), n) for n in sizes)


def _micro_batch(asked: int, mbs: int, rows: int) -> float:
    if mbs == asked:
        return 0.0
    return MICRO_BATCH * abs(math.log2(mbs / asked)) + PADDING * (-rows % mbs) / rows


def _far(choice: Choice) -> float:
    return choice.distance

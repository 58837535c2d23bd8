"""Which numbers of micro-batches a schedule takes, and the nearest that it does.

The counts are torch's own (``tests/plan/pipeline/test_counts.py`` tries every count up to 40 on the installed
torch), except that what torch refuses in the middle of a start is said here before any process exists, with the
counts that do run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Protocol

from paceline.ledger.plural import many
from paceline.plan.columns import Column, most


class Pipeline(Protocol):
    """What is needed of a layout (:class:`paceline.plan.layout.Layout` has it)."""

    @property
    def pp(self) -> int: ...
    @property
    def schedule(self) -> str: ...
    @property
    def vpp(self) -> int: ...
    @property
    def stages(self) -> int: ...
    @property
    def recompute(self) -> str: ...
    @property
    def compile(self) -> str: ...
    def stage_rank(self, stage: int, /) -> int: ...


def per_round(layout: Pipeline, micro_batches: Column) -> Column:
    """Micro-batches that a rank takes through one of its stages before it turns to the next."""
    return micro_batches // rounds(layout, micro_batches)


def rounds(layout: Pipeline, micro_batches: Column) -> Column:
    """How often a rank goes through all of its stages."""
    return most(1, micro_batches // layout.pp)


def takes(layout: Pipeline, micro_batches: Column) -> Column:
    """Whether the layout's schedule can run this number of micro-batches; any number without a pipeline."""
    some = micro_batches >= 1
    if layout.pp <= 1 or layout.schedule in ("gpipe", "zbv"):
        return some
    if layout.schedule in ("interleaved", "zero-bubble"):
        return some & (micro_batches % rounds(layout, micro_batches) == 0)
    return micro_batches >= _least(layout)


def _least(layout: Pipeline) -> int:
    return {"1f1b": layout.pp, "dualpipev": 2 * layout.pp}.get(layout.schedule, 1)


def nearest(layout: Pipeline, micro_batches: int) -> int:
    """The number nearest to the wanted one that the schedule takes; of two equally near the larger, which is
    reached by micro-batches of weight zero and leaves their size as it is."""
    return next(n for n in _by_distance(micro_batches) if takes(layout, n))


def allowed_micro_batches(layout: Pipeline, wanted: int, many: int = 4) -> list[int]:
    """The ``many`` numbers nearest to the wanted one that the schedule takes, in order."""
    found = []
    for n in _by_distance(wanted):
        if takes(layout, n):
            found.append(n)
        if len(found) == many:
            return sorted(found)
    raise AssertionError("unreachable: every schedule takes numbers without end")


def _by_distance(wanted: int) -> Iterator[int]:
    yield wanted
    for distance in count(1):
        yield from (wanted + distance, wanted - distance)


RULES = {
    "1f1b": "at least pp micro-batches a step",
    "interleaved": "micro-batches that split evenly into max(1, micro-batches // pp) rounds",
    "zero-bubble": "micro-batches that split evenly into max(1, micro-batches // pp) rounds",
    "dualpipev": "at least 2·pp micro-batches a step",
    "gpipe": "at least one micro-batch a step",
    "zbv": "at least one micro-batch a step",
}
"""What each schedule asks of the number of micro-batches, in words."""


def refuses(layout: Pipeline, micro_batches: int) -> str | None:
    """Why the layout's schedule cannot run this number of micro-batches, with the numbers that it can."""
    if takes(layout, micro_batches):
        return None
    near = ", ".join(map(str, allowed_micro_batches(layout, micro_batches)))
    have = many(micro_batches, "micro-batch")
    return f"pp={layout.pp}:{layout.schedule} cannot run {have} a step: it takes {near}, …"

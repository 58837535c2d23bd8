"""Few combinations that hold every pair of values that may stand together: most faults need two features, not five.

Deterministic: the same factors, rules and seed give the same rows. The method is greedy (as AETG, Cohen et al. 1997,
doi:10.1109/32.605761): each row starts from a pair that no row has yet, and is filled up with what covers most.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]
Item = tuple[str, Any]
Allowed = Callable[[Mapping[str, Any]], bool]

TRIES, HOPELESS = 40, 16
"""Ways to fill up a row among which the best is taken; and how many fail before a pair counts as impossible."""


def covering(
    factors: Mapping[str, Sequence[Any]],
    allowed: Allowed,
    *,
    first: Sequence[Row] = (),
    least: int = 0,
    seed: int = 0,
) -> list[Row]:
    """Rows with a value for each factor that cover every possible pair.

    Args:
        factors: name → values; the first is the plain one, which is hardly ever in the way.
        allowed: whether a whole row may be.
        first: rows that are to be in it, as far as they are given; the rest is filled in.
        least: go on until there are so many rows, each with as many new triples as can be found.
        seed: of the choice among equals.
    """
    rng = random.Random(seed)
    rows: list[Row] = []
    pairs = _Covered(2)
    for given in first:
        rows += pairs.add(_best(factors, allowed, given, pairs, rng))
    impossible: set[frozenset[Item]] = set()
    for pair in _pairs(factors):
        if pair in pairs.seen or pair in impossible:
            continue
        row = _best(factors, allowed, dict(pair), pairs, rng)
        if row is None:
            impossible.add(pair)
        rows += pairs.add(row)
    triples = _Covered(3)
    for row in rows:
        triples.add(row)
    stale = 0
    while len(rows) < least and stale < HOPELESS:
        row = _best(factors, allowed, {}, triples, rng)
        if row is None or row in rows:
            stale += 1
            continue
        rows += triples.add(row)
    return rows


def uncovered(factors: Mapping[str, Sequence[Any]], rows: Sequence[Row]) -> list[frozenset[Item]]:
    """The pairs of values that stand together in no row: those that may not, if the rows are a covering."""
    seen = _Covered(2)
    for row in rows:
        seen.add(row)
    return [pair for pair in _pairs(factors) if pair not in seen.seen]


class _Covered:
    """Which combinations of ``size`` items some row has."""

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, set[frozenset[Item]]()

    def add(self, row: Row | None) -> list[Row]:
        if row is None:
            return []
        self.seen.update(map(frozenset, combinations(row.items(), self.size)))
        return [row]

    def new(self, row: Row) -> int:
        return sum(frozenset(items) not in self.seen for items in combinations(row.items(), self.size))


def _pairs(factors: Mapping[str, Sequence[Any]]) -> Iterator[frozenset[Item]]:
    for a, b in combinations(factors, 2):
        for x in factors[a]:
            for y in factors[b]:
                yield frozenset(((a, x), (b, y)))


def _best(
    factors: Mapping[str, Sequence[Any]], allowed: Allowed, given: Row, covered: _Covered, rng: random.Random
) -> Row | None:
    """The given items, filled up: of some allowed ways that with most that is new; None where no way was found."""
    best: tuple[int, Row] | None = None
    for attempt in range(TRIES):
        if best is None and attempt == HOPELESS:
            break
        row = _filled(factors, allowed, given, rng, plain=attempt % 4 == 0)
        if row is None:
            continue
        new = covered.new(row)
        if best is None or new > best[0]:
            best = new, row
    return best[1] if best else None


def _filled(
    factors: Mapping[str, Sequence[Any]], allowed: Allowed, given: Row, rng: random.Random, *, plain: bool
) -> Row | None:
    """Start from plain values, then put others in one by one wherever the row stays allowed.

    A given item may need another beside it (experts need ranks to lie on): while the row is not allowed, random
    values of the others are tried.
    """
    row = {name: given.get(name, values[0]) for name, values in factors.items()}
    free = [name for name in factors if name not in given]
    rng.shuffle(free)
    for name in free if not allowed(row) else ():
        for value in rng.sample(list(factors[name]), len(factors[name])):
            if allowed({**row, name: value}):
                row[name] = value
                break
        else:
            row[name] = rng.choice(factors[name])
        if allowed(row):
            break
    if not allowed(row):
        return None
    for name in free:
        wanted = rng.choice(factors[name]) if not plain or rng.random() < 0.5 else row[name]
        if wanted != row[name] and allowed({**row, name: wanted}):
            row[name] = wanted
    return {name: row[name] for name in factors}

"""Choose among hardware: the cheapest, or the fastest that is not much dearer; what cannot be it is not searched.

With the objective ``time`` more hosts are always faster, and always dearer in the end. So the fastest is taken among
those that cost at most ``TOLERATED`` times the cheapest, a tenth more, or among those inside the budget where one is
set. Deadline and budget hold for the upper end of each interval, as in every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

TOLERATED = 1.10
Word = Literal[
    "chosen", "fits", "too dear", "no fit", "late", "over budget", "fewer do", "pruned", "no price", "refused"
]


@dataclass(frozen=True)
class Tried:
    """One number of hosts of one offer.

    Attributes:
        hours, usd: of the run, or of a million tokens where its length is not known; a bound where ``word`` is
        ``pruned``. usd: None where no price is known.
        word: what became of it. more: with which figure. needs: the limit that it would meet, where it misses one.
    """

    name: str
    offer: str
    hosts: int
    hours: float = 0.0
    usd: float | None = None
    layout: str = ""
    usd_parts: tuple[tuple[str, float], ...] = ()
    word: Word = "fits"
    more: str = ""
    needs: float = 0.0


@dataclass(frozen=True)
class Entry:
    """An offer's number of hosts with what it cannot beat; ``word`` is set where that is enough to drop it."""

    tried: Tried
    least_hours: float
    least_usd: float | None

    @property
    def dropped(self) -> bool:
        return self.tried.word != "fits"


Search = Callable[[Entry], Tried]
"""The price of an entry by the planner: ``fits``, or what it fails by."""


class Choice:
    """A choice under way: what was searched is remembered."""

    def __init__(self, entries: Sequence[Entry], search: Search) -> None:
        self.entries = list(entries)
        self._search = search
        self.known: dict[str, Tried] = {e.tried.name: e.tried for e in entries if e.dropped}
        self.searched = 0
        self.limit_usd = float("inf")  # above it an offer is too dear for what it saves

    def of(self, entry: Entry) -> Tried:
        name = entry.tried.name
        if name not in self.known:
            self.known[name] = self._search(entry)
            self.searched += 1
        return self.known[name]

    def best(self, objective: str, budgeted: bool, tolerated: float = TOLERATED) -> Tried | None:
        """The choice; None when nothing that has a price fits and meets the limits."""
        cheapest = self.cheapest()
        if cheapest is None or cheapest.usd is None or objective == "cost":
            return cheapest
        self.limit_usd = float("inf") if budgeted else cheapest.usd * tolerated
        return self._fastest(self.limit_usd)

    def cheapest(self, among: Callable[[Entry], bool] = lambda entry: True) -> Tried | None:
        """Of those that fit and meet the limits; the bound of the rest is above it."""
        best: Tried | None = None
        priced = [e for e in self.entries if not e.dropped and e.least_usd is not None and among(e)]
        for entry in sorted(priced, key=lambda e: (e.least_usd, e.least_hours)):
            if best is not None and best.usd is not None and (entry.least_usd or 0.0) > best.usd:
                break
            found = self.of(entry)
            if found.word == "fits" and (best is None or _cost_order(found) < _cost_order(best)):
                best = found
        return best

    def _fastest(self, limit: float) -> Tried | None:
        """Of those that cost at most ``limit``."""
        best: Tried | None = None
        priced = [
            e for e in self.entries if not e.dropped and e.least_usd is not None and e.least_usd <= limit
        ]
        for entry in sorted(priced, key=lambda e: (e.least_hours, e.least_usd)):
            if best is not None and entry.least_hours > best.hours:
                break
            found = self.of(entry)
            if found.word != "fits" or found.usd is None or found.usd > limit:
                continue
            if best is None or _order("time", found) < _order("time", best):
                best = found
        return best

    def nearest(self, word: Word) -> Tried | None:
        """Of those that miss a limit, the one that the least change of it would admit."""
        best: Tried | None = None
        missed = [e for e in self.entries if self.known.get(e.tried.name, e.tried).word == word]
        for entry in sorted(missed, key=lambda e: _bound(word, e)):
            if best is not None and _bound(word, entry) > best.needs:
                break
            found = self.known[entry.tried.name]
            found = found if found.layout else self._search(entry)
            if found.needs and found.word == word and (best is None or found.needs < best.needs):
                best = found
        return best

    def told(self, chosen: Tried | None, objective: str) -> list[Tried]:
        """Every entry with its verdict, in order of the objective; what has no figures comes last."""
        rows = [self.known.get(e.tried.name) or _pruned(e) for e in self.entries]
        if chosen is not None:
            rows = [_verdict(row, chosen, objective, self.limit_usd) for row in rows]
        rank: dict[Word, int] = {"chosen": 0, "fits": 1, "too dear": 2, "pruned": 3}
        return sorted(rows, key=lambda row: (rank.get(row.word, 4), *_order(objective, row)))


def _bound(word: Word, entry: Entry) -> float:
    return entry.least_hours if word == "late" else entry.least_usd or 0.0


def _cost_order(one: Tried) -> tuple[float, ...]:
    return (float("inf") if one.usd is None else one.usd, one.hours, one.hosts)


def _order(objective: str, one: Tried) -> tuple[float, ...]:
    usd = float("inf") if one.usd is None else one.usd
    return (one.hours, usd, one.hosts) if objective == "time" else (usd, one.hours, one.hosts)


def _pruned(entry: Entry) -> Tried:
    usd = entry.least_usd
    word: Word = "no price" if usd is None else "pruned"
    return replace(entry.tried, hours=entry.least_hours, usd=usd, word=word)


def _verdict(row: Tried, chosen: Tried, objective: str, limit_usd: float) -> Tried:
    """Chosen, or by how much it is dearer or slower; ``≥`` where only its bound is known."""
    if row.name == chosen.name:
        return replace(row, word="chosen", more="")
    if row.word not in ("fits", "pruned") or row.usd is None or not chosen.usd:
        return row
    at_least = "≥ " if row.word == "pruned" else ""
    dearer, slower = row.usd / chosen.usd - 1, row.hours / chosen.hours - 1 if chosen.hours else 0.0
    if row.usd > limit_usd:
        word: Word = "too dear" if row.word == "fits" else "pruned"
        return replace(row, word=word, more=f"{at_least}{_times(dearer)} dearer")
    first, then = ((slower, "slower"), (dearer, "dearer"))[:: 1 if objective == "time" else -1]
    more, word_of = first if first[0] > 0 else then
    return replace(row, more=f"{at_least}{_times(more)} {word_of}" if more > 0 else "no better")


def _times(more: float) -> str:
    return f"{1 + more:.1f}×" if more >= 1 else f"{more:.0%}".replace("%", " %") if more >= 0.005 else "<1 %"

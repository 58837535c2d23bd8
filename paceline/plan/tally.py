"""How many layouts a search had before it, and what became of each: sums that add up."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Tally:
    """Numbers of layouts.

    Attributes:
        divide: their degrees divide. refused: of those, by the rule book.
        over_memory, too_slow: not priced, since a lower bound of their bytes does not fit, or one of their seconds
            is above what the best take. scored: priced in full. unfit, late: of the scored, those that do not fit,
            and those past the deadline or the budget.
        simulated: of the scored, those whose schedule was run action by action.
    """

    divide: int = 0
    refused: int = 0
    over_memory: int = 0
    too_slow: int = 0
    scored: int = 0
    unfit: int = 0
    late: int = 0
    simulated: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def adds_up(self) -> bool:
        """Every layout is refused, pruned or scored, and nothing else."""
        return self.divide == self.refused + self.over_memory + self.too_slow + self.scored

    def rejected(self, listed: int) -> dict[str, int]:
        """By kind of rejection, when ``listed`` of the scored are not rejected."""
        slower = self.too_slow + self.scored - self.unfit - self.late - listed
        kinds = {"memory": self.over_memory + self.unfit, "rule": self.refused, "deadline": self.late}
        return {kind: n for kind, n in {"slower": slower, **kinds}.items() if n > 0}

    def to_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __str__(self) -> str:
        parts = [f"{grouped(self.divide)} layouts divide", f"{grouped(self.refused)} refused by rules"]
        parts += [f"{grouped(self.over_memory)} pruned by a memory bound"]
        parts += [f"{grouped(self.too_slow)} by a time bound", f"{grouped(self.scored)} scored"]
        return " · ".join([*parts, f"{grouped(self.simulated)} simulated"])


def grouped(number: int) -> str:
    """Thousands apart, every digit."""
    return f"{number:,}".replace(",", " ")

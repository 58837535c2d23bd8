"""What is known of a model while its config is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paceline.job.beyond import Beyond
from paceline.job.families.known import Family
from paceline.job.families.values import Values


@dataclass
class Draft:
    """Widths so far, what is counted beside them, what our decoder lacks, and what had to be assumed."""

    values: Values
    family: Family
    widths: dict[str, Any] = field(default_factory=dict)
    beyond: dict[str, Any] = field(default_factory=dict)
    needs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lack(self, what: str) -> None:
        """Our decoder does not compute this."""
        if what not in self.needs:
            self.needs.append(what)

    @property
    def layers(self) -> int:
        return int(self.widths["num_hidden_layers"])

    def whole(self) -> dict[str, Any]:
        """The widths, with a :class:`Beyond` where our decoder cannot compute them all."""
        found = dict(self.widths)
        if self.needs:
            found["beyond"] = Beyond(self.family.name, tuple(self.needs), tuple(self.notes), **self.beyond)
        return found

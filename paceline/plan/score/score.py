"""The whole score of a table of runs: predictions, errors by source and group, ranking; as a value and as files."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.plan.calibrate.example import Example
from paceline.plan.calibrate.packaged import fingerprint, posterior, thinned
from paceline.plan.published.runs import Run
from paceline.plan.score.errors import Errors, by_group, by_source, counts, off, overall, trusted, worst
from paceline.plan.score.ranking import Contest, Ranking, contests, ranking
from paceline.plan.score.scored import COLUMNS, Scored, asked, predicted

Say = Callable[[str], None]


@dataclass(frozen=True)
class Score:
    """Every run with its prediction.

    Attributes:
        scored: in the order of the table. anchors: runs of its own group that each prediction could use.
        learnt: what it was calibrated on, in words.
    """

    scored: Sequence[Scored]
    anchors: int
    learnt: str

    @property
    def refused(self) -> list[Scored]:
        return [one for one in self.scored if one.predicted is None]

    @property
    def contests(self) -> list[Contest]:
        return contests(self.scored)

    def ranking(self, several_hosts: bool) -> Ranking | None:
        """Of the contests on one host, or of those on several."""
        return ranking([one for one in self.contests if (one.hosts > 1) == several_hosts])

    def sources(self) -> list[Errors]:
        return by_source(self.scored)

    def groups(self) -> list[Errors]:
        return by_group(self.scored)

    def all(self) -> Errors | None:
        return overall(self.scored)

    def to_dict(self) -> dict[str, Any]:
        whole, one, many = self.all(), self.ranking(False), self.ranking(True)
        return {
            "runs": len(self.scored),
            "predicted": len(self.scored) - len(self.refused),
            "judged": sum(counts(one) for one in self.scored),
            "refused": _reasons(self.refused),
            "anchors": self.anchors,
            "calibration": self.learnt,
            "all": whole and whole.to_dict(),
            "sources": [errors.to_dict() for errors in self.sources()],
            "groups": [errors.to_dict() for errors in self.groups()],
            "ranking": {"one host": one and one.to_dict(), "several hosts": many and many.to_dict()},
            "worst": [{"id": bad.run.id, "log_error": round(off(bad), 3)} for bad in worst(self.scored)],
        }

    def write(self, path: Path) -> None:
        """The table of predictions, one row a run."""
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(one.row() for one in self.scored)


def _reasons(refused: Sequence[Scored]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in refused:
        found[one.reason] = found.get(one.reason, 0) + 1
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def score(
    runs: Sequence[Run],
    *,
    learn_from: Sequence[Run] | None = None,
    anchors: int = 0,
    say: Say = lambda line: None,
) -> Score:
    """Predict every run from others.

    Args:
        runs: to predict. learn_from: measured runs to calibrate on; default the packaged open tables.
        anchors: of a run's own group so many others may be used; else none of them.
        say: gets a line when something takes seconds.
    """
    say(f"pricing {len(runs)} runs")
    questions = asked(runs)
    learnt: list[Example] | None = None
    words = f"packaged open tables ({fingerprint()})"
    if learn_from is not None:
        learnt = learnable(asked(learn_from))
        words = f"{len(learnt)} runs of the given table"
    own = [one.example for one in questions if one.example is not None] if anchors else []
    say("predicting each from the runs of other groups")
    return Score(predicted(questions, posterior(learnt, anchors, own)), anchors, words)


def learnable(questions: Sequence[Scored]) -> list[Example]:
    """Examples good enough to learn from: measured, with enough of their cells filled in."""
    return thinned(one.example for one in questions if one.example is not None and trusted(one))

"""Everything that a run's folder says, read once for the report and for comparisons.

Nothing here raises because a file is missing, half-written or of another version: a run that died must be
explained too. What could not be read is absent, and the page says so.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from paceline.ledger.accounts import (
    RankAccounts,
    Split,
    rank_accounts,
    read_ranks,
    split_waits,
    where_time_went,
)
from paceline.ledger.atomic import read_json_or
from paceline.ledger.folder import RunFolder, read_manifest
from paceline.ledger.metrics import LARGEST, columns, counted_rows
from paceline.ledger.records import read_all
from paceline.ledger.status import Status

WARM_UP_STEPS = 3  # the first steps allocate, compile and fault pages in; they are shown apart


@dataclass(frozen=True)
class StepTimes:
    """Seconds of the steps after :data:`WARM_UP_STEPS`: distribution, not an average."""

    count: int
    p50: float
    p95: float
    p99: float
    worst: float
    first: float


@dataclass(frozen=True)
class Stretch:
    """Attempts in a row on one layout: how many steps of them stand. ``layout`` "" : nobody noted it."""

    layout: str
    steps: int
    attempts: int


class Facts:
    """Lazily read facts of one run."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.name = folder.name

    @cached_property
    def status(self) -> Status | None:
        return self.folder.read_status()

    @cached_property
    def state(self) -> str:
        return self.folder.shown_state()

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return dict(read_manifest(self.folder))

    @cached_property
    def job(self) -> dict[str, Any]:
        """The resolved job as nested tables; empty when it cannot be read."""
        try:
            return tomllib.loads(self.folder.job_toml.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}

    @cached_property
    def job_keys(self) -> dict[str, Any]:
        """The resolved job by dotted key."""
        return flatten(self.job)

    @cached_property
    def records(self) -> list[dict[str, Any] | None]:
        return read_all(self.folder)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """As ``Plan.to_dict`` wrote it to ``evidence/plan.json``; else as far as record 1 tells it."""
        found = read_json_or(self.folder.evidence / "plan.json", None)
        if isinstance(found, Mapping) and isinstance(found.get("best"), Mapping):
            return dict(found)
        return plan_of_record(self.records[0] or {})

    @cached_property
    def train(self) -> dict[str, list[Any]]:
        return columns(self.folder.metrics, "train")

    @cached_property
    def evals(self) -> list[dict[str, Any]]:
        return counted_rows(self.folder.metrics, "eval")

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return counted_rows(self.folder.metrics, "event")

    @cached_property
    def split(self) -> Split:
        return split_waits(read_ranks(self.folder))

    @cached_property
    def ranks(self) -> list[RankAccounts]:
        return [rank_accounts(ledger) for ledger in self.split.ranks]

    @cached_property
    def time_rows(self) -> list[dict[str, Any]]:
        return where_time_went(self.ranks)

    @cached_property
    def checkpoints(self) -> list[tuple[int, Path, int]]:
        """(step, folder, bytes) of what is published, by step."""
        found = []
        try:
            entries = list(self.folder.checkpoints.iterdir())
        except OSError:
            return []
        for path in entries:
            digits = path.name.removeprefix("step-")
            if path.name.startswith("step-") and digits.isdigit() and path.is_dir():
                found.append((int(digits), path, RunFolder(path).disk_bytes()))
        return sorted(found)

    @cached_property
    def latest_checkpoint(self) -> str:
        try:
            words = (self.folder.checkpoints / "latest").read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            return ""
        return words[0] if words else ""

    @property
    def layout(self) -> str:
        """What the run ran as; its status is newer than its job."""
        return (self.status.layout if self.status else "") or str(self.job_keys.get("layout.use", ""))

    @property
    def devices(self) -> int:
        """Ranks of the newest attempt: an earlier one may have had more."""
        newest = max((line.attempt for rank in self.split.ranks for line in rank.lines), default=0)
        return sum(any(line.attempt == newest for line in rank.lines) for rank in self.split.ranks) or 1

    @cached_property
    def stretches(self) -> list[Stretch]:
        """The run's attempts that left steps, oldest first, those of one layout taken together."""
        layouts = self.status.layouts if self.status else {}
        counts: dict[int, int] = {}
        for attempt in self.train.get("attempt", []):
            counts[int(attempt)] = counts.get(int(attempt), 0) + 1
        newest = max(counts, default=0)
        found: list[Stretch] = []
        for attempt in sorted(counts):
            layout = layouts.get(str(attempt), self.layout if attempt == newest else "")
            if found and found[-1].layout == layout:
                last = found.pop()
                found.append(Stretch(layout, last.steps + counts[attempt], last.attempts + 1))
            else:
                found.append(Stretch(layout, counts[attempt], 1))
        return found

    @property
    def newest_steps(self) -> int | None:
        """How many steps the newest attempt finished, where there were others: its speed is the one shown."""
        return len(self._newest_attempt("step")) if self.attempts > 1 else None

    @property
    def last_step(self) -> int:
        steps = self.train.get("step", [])
        return max([self.status.step if self.status else 0, *(steps[-1:])])

    @property
    def steps_planned(self) -> int:
        return (self.status.steps if self.status else 0) or self.last_step

    @property
    def wall_s(self) -> float:
        """Seconds that the longest-living rank was accounted for, over all attempts."""
        return max((r.wall_s for r in self.ranks), default=0.0)

    @property
    def attempts(self) -> int:
        return 1 + max([int(a) for a in self.train.get("attempt", [])], default=0)

    @cached_property
    def restarts(self) -> list[int]:
        """The last step that stood before each restart, as the counted rows show it."""
        rows = zip(self.train.get("step", []), self.train.get("attempt", []), strict=True)
        return [int(before[0]) for before, after in pairwise(rows) if after[1] > before[1]]

    @cached_property
    def step_times(self) -> StepTimes | None:
        """Distribution of ``step_time_s``, warm-up apart; ``None`` before a step has finished."""
        seconds = finite(self._newest_attempt("step_time_s"))
        steady = seconds[WARM_UP_STEPS:] if len(seconds) > 2 * WARM_UP_STEPS else seconds
        if not steady:
            return None
        return StepTimes(
            len(steady),
            statistics.median(steady),
            quantile(steady, 0.95),
            quantile(steady, 0.99),
            max(steady),
            seconds[0],
        )

    def _newest_attempt(self, key: str) -> Sequence[Any]:
        """The values of the newest attempt: its layout and its plan are the run's, an earlier one's may differ."""
        values, attempts = self.train.get(key, []), self.train.get("attempt", [])
        if len(values) != len(attempts):
            return values
        newest = max(attempts, default=0)
        return [value for value, attempt in zip(values, attempts, strict=True) if attempt == newest]

    def median(self, key: str) -> float | None:
        """Median of a metrics key over the steps after warm-up."""
        values = finite(self._newest_attempt(key))
        steady = values[WARM_UP_STEPS:] if len(values) > 2 * WARM_UP_STEPS else values
        return statistics.median(steady) if steady else None

    def peak(self, key: str) -> float | None:
        """Largest value of a metrics key."""
        return max(finite(self.train.get(key, [])), default=None)

    @property
    def last_eval(self) -> dict[str, Any] | None:
        """The newest held-out evaluation of the main set."""
        main = [row for row in self.evals if row.get("set", "eval") in ("eval", "held-out", "")]
        newest = (main or self.evals)[-1:]
        return newest[0] if newest else None

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Simple models on the same held-out set, where somebody recorded them."""
        evaluation = self.manifest.get("evaluation")
        found = evaluation.get("baselines") if isinstance(evaluation, Mapping) else None
        if not isinstance(found, Mapping):
            return {}
        return {
            str(name): {k: float(v) for k, v in row.items() if is_number(v)}
            for name, row in found.items()
            if isinstance(row, Mapping)
        }


def plan_of_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A plan without its table of candidates, from record 1; empty when that decided nothing."""
    decision = record.get("decision")
    if not isinstance(decision, Mapping) or "step_s" not in decision:
        return {}
    rejected = record.get("rejected")
    return {
        "best": dict(decision),
        "candidates": [dict(decision)],
        "rejected": [
            {
                "layout": row.get("alternative", ""),
                "reason": row.get("reason", ""),
                "value": row.get("value"),
                "limit": row.get("limit"),
                "nearest": row.get("wins_when", ""),
            }
            for row in (rejected if isinstance(rejected, list) else [])
            if isinstance(row, Mapping)
        ],
        "distribute": decision.get("distribute"),
        "reason": decision.get("reason", ""),
        "assumed": record.get("assumptions", []),
        "shortcut": record.get("shortcut", ""),
    }


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables → dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def table(tables: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The table of this name; an empty one when it is absent or something else."""
    found = tables.get(key)
    return found if isinstance(found, Mapping) else {}


def is_number(value: Any) -> TypeGuard[float]:
    """An int or float that can be calculated with; JSON's null, texts and booleans are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def finite(values: Sequence[Any]) -> list[float]:
    """The finite numbers among ``values``."""
    return [float(v) for v in values if is_number(v)]


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least ``q`` of all do not exceed: one that happened, not a mean of two."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))]

"""What the planner answers: candidates, typed rejections and the plan itself, as values (interface §12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from paceline.ledger.outcome import Exit, Failed, Refused
from paceline.plan.cluster import Cluster
from paceline.plan.digits import GIB as GIB
from paceline.plan.facts import JobFacts
from paceline.plan.layout import Layout
from paceline.plan.model import CONVENTION
from paceline.plan.tally import Tally

if TYPE_CHECKING:
    from paceline.job import Job
    from paceline.plan.census import Census
    from paceline.plan.weigh import Question

Kind = Literal["memory", "rule", "slower", "cost", "deadline"]


PAGE = ".html"


def refuse_place(path: Path | str, suffixes: tuple[str, ...] = (".toml",)) -> None:
    """Asked before the planning, so that nothing is worked out for a place that takes no file."""
    path = Path(path)
    if path.is_dir():
        message, use = f"{path} is a folder", f"--save {quote(str(path / 'planned.toml'))}"
    elif not path.parent.is_dir():
        message, use = f"there is no folder {path.parent}", f"mkdir -p {quote(str(path.parent))}"
    elif not path.name or path.suffix.lower() not in suffixes:
        message, use = f"{path} is no name of a job file", f"--save {quote(str(path))}.toml"
    else:
        return
    kinds = "a job file, ….toml, or a page, ….html," if PAGE in suffixes else "a job file, ….toml,"
    raise Refused(
        message,
        exit_code=Exit.USAGE,
        key="--save",
        seen=f"--save {path}",
        rule=f"it names {kinds} in a folder that is there",
        use=use,
    )


@dataclass(frozen=True)
class Candidate:
    """A layout that runs and fits.

    Attributes:
        step_s: seconds of a step: low, mid, high; nine in ten lie between. hours: of the run, None = unknown.
        mfu: 0–1 of the rate that this precision reaches at best (``model.CONVENTION``).
        memory_gib: of the fullest rank: allocated, reserved, and what the device or process shows.
        p_oom: probability that it runs out of memory.
        terms: seconds by part (compute, deliver, update, host; hidden, padding) and bytes sent a step and
        rank.
        scope: device, host or cluster.
        goodput: of the run's time the share that finished steps take; the rest is saving, failures and work done again.
        predicted_s: where it was run, what had been predicted; ``step_s`` then is measured: nine in ten steps.
        measured_gib: where it was run, the largest peak of a rank, reserved.
        usd_parts: ``initial`` and ``power``, or ``rent`` and ``egress``, as far as known (``money.py``).
    """

    layout: Layout
    step_s: tuple[float, float, float]
    tokens_per_s: float
    mfu: float
    memory_gib: tuple[float, float, float]
    p_oom: float
    usd: float | None
    hours: tuple[float, float, float] | None
    terms: Mapping[str, float]
    scope: str
    verdict: str = ""
    goodput: float = 1.0
    predicted_s: tuple[float, float, float] | None = None
    measured_gib: float | None = None
    usd_parts: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        measured = self.predicted_s is not None
        ran = {"predicted_step_s": list(self.predicted_s or ()), "measured_gib": self.measured_gib}
        return {
            "layout": str(self.layout),
            "full": self.layout.full,
            "scope": self.scope,
            "devices": self.layout.world_size,
            "step_s": list(self.step_s),
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "memory_gib": list(self.memory_gib),
            "p_oom": self.p_oom,
            "goodput": self.goodput,
            "usd": self.usd,
            "usd_parts": dict(self.usd_parts),
            "hours": None if self.hours is None else list(self.hours),
            "terms": dict(self.terms),
            "verdict": self.verdict,
            "kind_of_evidence": "measured" if measured else "calculated",
        } | (ran if measured else {})


@dataclass(frozen=True)
class Rejection:
    """A layout that was not taken: its value, the limit, and what comes nearest or would make it win."""

    layout: Layout
    kind: Kind
    value: float
    limit: float
    unit: str
    nearest: str
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "layout": str(self.layout),
            "kind": self.kind,
            "value": self.value,
            "limit": self.limit,
            "unit": self.unit,
            "nearest": self.nearest,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Plan:
    """The decision, what it was chosen from, and why.

    Attributes:
        best: the chosen candidate. candidates: it and the next best, each with a verdict.
        scopes: the best candidate of each scope that has one.
        distribute: more than one device. reason: why it stopped at that scope, with numbers.
        crossovers: what would change the answer. assumed: what was not measured or not known.
        what_if: one row for each value that was asked about.
        measured_at: when this machine was measured; empty where it was not. busy: other programs ran meanwhile.
        tally: of all layouts that divide; ``rejected`` holds all of few, the nearest misses of many.
        priced: every candidate that was priced in full, in order; ``candidates`` are the first of them.
        auto: the layout was not asked for. question: what was asked, so that it can be asked again.
    """

    job: Job
    facts: JobFacts
    cluster: Cluster
    objective: str
    best: Candidate
    candidates: Sequence[Candidate]
    rejected: Sequence[Rejection]
    scopes: Mapping[str, Candidate]
    reason: str
    shortcut: str
    crossovers: Sequence[str]
    assumed: Sequence[str]
    disk: Mapping[str, int] = field(default_factory=dict)
    what_if: Sequence[Mapping[str, Any]] = ()
    measured_at: str = ""
    busy: bool = False
    tally: Tally = field(default_factory=Tally)
    census: Census | None = field(default=None, repr=False, compare=False)
    priced: Sequence[Candidate] = field(default=(), repr=False)
    auto: bool = True
    question: Question | None = field(default=None, repr=False, compare=False)

    @property
    def layout(self) -> Layout:
        return self.best.layout

    @property
    def distribute(self) -> bool:
        return self.best.layout.world_size > 1

    def save(self, path: Path | str) -> None:
        """Write a job file with the layout, and the cluster that it was chosen for; ``train`` runs it there.

        Raises:
            Refused: 2, the path is a folder, or in one that is not there. Failed: 55, it cannot be written.
        """
        refuse_place(path)
        chosen = {"layout.use": str(self.best.layout)}
        if not self.cluster.visible:
            chosen["cluster.use"] = self.cluster.name
        try:
            self.job.replace(chosen).save(path)
        except OSError as error:
            raise Failed(
                "the planned job cannot be written",
                exit_code=Exit.STORE,
                key="--save",
                seen=f"{path}: {error.strerror or error}",
                rule="the folder must be writable and have room",
                use="--save planned.toml",
            ) from error

    def counts(self) -> dict[str, int]:
        """Rejections by kind, the most frequent first."""
        found: dict[str, int] = self.tally.rejected(len(self.candidates))
        for rejection in self.rejected if not self.tally.divide else ():
            found[rejection.kind] = found.get(rejection.kind, 0) + 1
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON (``paceline plan --json``)."""
        count = self.facts.work.count
        return {
            "job": self.facts.name,
            "model": {
                "name": self.facts.model,
                "parameters": count.total,
                "flops_per_token": self.facts.flops_token,
                "flops_convention": CONVENTION,
            },
            "cluster": self.cluster.name,
            "objective": self.objective,
            "precision": self.facts.work.precision,
            "steps": self.facts.steps,
            "tokens_per_step": self.facts.tokens_per_step,
            "best": self.best.to_dict(),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "rejected": [rejection.to_dict() for rejection in self.rejected],
            "scopes": {scope: candidate.to_dict() for scope, candidate in self.scopes.items()},
            "distribute": self.distribute,
            "reason": self.reason,
            "shortcut": self.shortcut,
            "crossovers": list(self.crossovers),
            "assumed": list(self.assumed),
            "disk": dict(self.disk),
            "what_if": [dict(row) for row in self.what_if],
            "measured_at": self.measured_at,
            "measured_busy": self.busy,
            "searched": self.tally.to_dict(),
        }

    def record(self, command: str = "") -> dict[str, Any]:
        """The fields of phase record 1 that the planner knows (``ledger/records.py`` names them all)."""
        best = self.best
        return {
            "objective": {
                "make small": self.objective,
                "deadline_s": self.job.layout.deadline,
                "budget_usd": self.job.layout.budget_usd,
            },
            "inputs": {
                "job": self.facts.name,
                "parameters": self.facts.work.count.total,
                "tokens_per_step": self.facts.tokens_per_step,
                "steps": self.facts.steps,
                "cluster": self.cluster.name,
                "measured_at": self.measured_at or "not measured: catalogue",
            },
            "assumptions": list(self.assumed),
            "decision": {
                "layout": str(best.layout),
                "scope": best.scope,
                "distribute": self.distribute,
                "reason": self.reason,
                "step_s": list(best.step_s),
                "memory_gib": list(best.memory_gib),
                "terms": dict(best.terms),
            },
            "changes": "none: a plan changes no state",
            "rejected": [
                {
                    "alternative": str(r.layout),
                    "reason": r.reason or r.kind,
                    "value": r.value,
                    "limit": r.limit,
                    "wins_when": r.nearest,
                }
                for r in self._notable()
            ],
            "shortcut": self.shortcut,
            "uncertainty": {"interval": "90 %", "step_s": list(best.step_s), "p_oom": best.p_oom},
            "resources": {
                "devices": best.layout.world_size,
                "hours": None if best.hours is None else list(best.hours),
                "usd": best.usd,
                "memory_gib": best.memory_gib[2],
                "disk_bytes": self.disk.get("checkpoints", 0),
            },
            "reproduce": command or f"paceline plan {self.facts.name}.toml --cluster {self.cluster.name}",
        }

    def _notable(self, most: int = 40) -> list[Rejection]:
        """The rejections nearest to their limit; all of them are in ``to_dict``."""
        near = sorted(self.rejected, key=lambda r: abs(r.value / r.limit - 1) if r.limit else 1.0)
        return near[:most]

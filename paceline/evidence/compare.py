"""Compares runs: what came out, what differed, and which difference could have caused which.

A result is attributed only as far as the facts carry it. When one thing differs, it explains the result; when
several do, the result stays unexplained and the run that would settle it is named. Runs whose data differ are
shown side by side and never ranked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from paceline.evidence import compare_text
from paceline.evidence.differences import Difference, data_hashes, differences
from paceline.evidence.facts import Facts, finite, is_number, table
from paceline.evidence.page.numbers import count
from paceline.evidence.waste import phase_shares
from paceline.ledger.folder import RunFolder
from paceline.ledger.outcome import Exit, Refused

NOTABLE = {"loss at equal tokens": 0.005, "tokens_per_s": 0.03, "memory_gib": 0.03, "cost_usd": 0.03}
"""Relative difference from which a result is worth a cause; below it, runs count as equal."""

_ONLY_LOSS = (
    "optimizer.",
    "train.seed",
    "train.steps",
    "train.epochs",
    "train.tokens",
    "train.max_time",
)  # keys that cannot change speed or memory in a way worth a line
_NOT_LOSS = ("layout.", "cluster.")  # a layout never changes the mathematics: it is no explanation of a loss


@dataclass(frozen=True)
class RunResult:
    """What one run came to; ``loss_at``: held-out (else training) loss at the tokens that all reached."""

    name: str
    state: str
    layout: str
    step: int
    tokens: float | None
    loss_at: float | None
    loss_kind: str
    tokens_per_s: float | None
    memory_gib: float | None
    cost_usd: float | None
    shares: dict[str, float] = field(default_factory=dict)

    def value(self, result: str) -> float | None:
        """A result by its name in :data:`NOTABLE`."""
        return self.loss_at if result == "loss at equal tokens" else getattr(self, result)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class Attribution:
    """A difference of results with what explains it, or the run that would settle it."""

    result: str
    low: float
    high: float
    cause: str  # technique | environment | data pipeline | unexplained
    because: tuple[str, ...]
    settle: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "because": list(self.because)}


@dataclass(frozen=True)
class Comparison:
    """Runs side by side. ``ranked`` is empty when they must not be ranked, ``refusal`` then says why."""

    runs: tuple[RunResult, ...]
    at_tokens: float | None
    differences: tuple[Difference, ...]
    attributions: tuple[Attribution, ...]
    ranked: tuple[str, ...]
    refusal: str = ""

    @property
    def order(self) -> str:
        """Names from the lowest loss; ``=`` joins those too near to the one before to be told apart."""
        loss = {run.name: run.loss_at or 0.0 for run in self.runs}
        words = list(self.ranked[:1])
        for before, name in pairwise(self.ranked):
            apart = loss[name] / loss[before] - 1 if loss[before] else 0.0
            words += ["=" if apart < NOTABLE["loss at equal tokens"] else "<", name]
        return " ".join(words)

    def text(self, width: int = 100) -> str:
        """For the terminal."""
        return compare_text.text(self.to_dict(), width)

    def to_dict(self) -> dict[str, Any]:
        return {
            "runs": [run.to_dict() for run in self.runs],
            "at_tokens": self.at_tokens,
            "differences": [d.to_dict() for d in self.differences],
            "attributions": [a.to_dict() for a in self.attributions],
            "ranked": list(self.ranked),
            "order": self.order,
            "refusal": self.refusal,
        }


def compare(folders: Sequence[RunFolder]) -> Comparison:
    """Compares two or more runs; fewer is refused (2)."""
    if len(folders) < 2:
        raise Refused(
            "there is nothing to compare",
            exit_code=Exit.USAGE,
            key="RUN",
            seen=", ".join(f.name for f in folders) or "no run",
            rule="a comparison needs two runs or more; a quoted pattern names several",
            use="paceline runs, then paceline compare with two names of its list",
        )
    facts = [Facts(folder) for folder in folders]
    at_tokens = _common_tokens(facts)
    results = tuple(_result(run, at_tokens) for run in facts)
    found = tuple(differences(facts))
    refusal = _refusal(facts, results)
    ranked = () if refusal else tuple(r.name for r in sorted(results, key=lambda r: r.loss_at or 0.0))
    return Comparison(results, at_tokens, found, tuple(_attributions(results, found)), ranked, refusal)


def text(comparison: Comparison, width: int = 100) -> str:
    """:meth:`Comparison.text` as a function."""
    return comparison.text(width)


def _common_tokens(runs: Sequence[Facts]) -> float | None:
    """The most tokens that every run has seen at an evaluation (at a step, when one was never evaluated)."""
    lasts = []
    for run in runs:
        seen = [tokens for tokens, _ in _losses(run)[0]]
        if not seen:
            return None
        lasts.append(max(seen))
    return min(lasts)


def _losses(run: Facts) -> tuple[list[tuple[float, float]], str]:
    """(tokens seen, loss) in order: held-out where there are evaluations, else training."""
    steps, tokens = run.train.get("step", []), run.train.get("tokens", [])
    seen_at = {s: t for s, t in zip(steps, tokens, strict=True) if is_number(t)} if tokens else {}
    held = [
        (float(seen_at[row["step"]]), float(row["loss"]))
        for row in run.evals
        if row.get("step") in seen_at and is_number(row.get("loss"))
    ]
    if held:
        return held, "held-out"
    losses = run.train.get("loss", [])
    return [
        (float(seen_at[s]), float(v))
        for s, v in zip(steps, losses, strict=False)
        if s in seen_at and is_number(v)
    ], "training"


def _result(run: Facts, at_tokens: float | None) -> RunResult:
    points, kind = _losses(run)
    tokens = finite(run.train.get("tokens", []))
    return RunResult(
        name=run.name,
        state=run.state,
        layout=run.layout,
        step=run.last_step,
        tokens=tokens[-1] if tokens else None,
        loss_at=None if at_tokens is None else interpolated(points, at_tokens),
        loss_kind=kind,
        tokens_per_s=run.median("tokens_per_s"),
        memory_gib=run.peak("memory_gib"),
        cost_usd=run.peak("cost_usd"),
        shares=phase_shares(run.time_rows) if run.time_rows else {},
    )


def interpolated(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """The value at ``x`` on the line through ``points``; ``None`` outside of them."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[0][1] if len(points) == 1 and points[0][0] == x else None


def _refusal(runs: Sequence[Facts], results: Sequence[RunResult]) -> str:
    hashes = data_hashes(runs)
    if len(set(hashes)) > 1:
        return "their data differ, so a lower loss may only mean easier data"
    if "" in hashes:
        return "no manifest says that their data are the same"
    if len({r.loss_kind for r in results}) > 1:
        return "one was evaluated on held-out data and another was not"
    if any(r.loss_at is None for r in results):
        return _no_common_loss(runs, results)
    sets = {str(table(run.manifest, "evaluation").get("hash", "")) for run in runs}
    if len(sets) > 1 and results[0].loss_kind == "held-out":
        return "their held-out sets differ"
    return ""


def _no_common_loss(runs: Sequence[Facts], results: Sequence[RunResult]) -> str:
    """Why a run whose loss is known stands there without one: it is not guessed beyond its own evaluations."""
    words = []
    for run, result in zip(runs, results, strict=True):
        seen = [tokens for tokens, _ in _losses(run)[0]]
        if result.loss_at is None:
            words.append(
                f"{run.name} has its first at {count(min(seen))}" if seen else f"{run.name} has none"
            )
    return f"they have no loss at a common number of tokens ({', '.join(words)})"


def _attributions(results: Sequence[RunResult], found: Sequence[Difference]) -> list[Attribution]:
    made = []
    for name, least in NOTABLE.items():
        values = [r.value(name) for r in results]
        known = [v for v in values if v is not None]
        if len(known) < 2 or min(known) <= 0 or max(known) / min(known) - 1 < least:
            continue
        made.append(_attribute(name, min(known), max(known), found, results[0].name))
    return made


def _attribute(result: str, low: float, high: float, found: Sequence[Difference], first: str) -> Attribution:
    able = [d for d in found if d.cause != "bookkeeping" and _can_move(d.key, result)]
    causes = {d.cause for d in able}
    because = tuple(d.key for d in able)
    if not able:
        layouts = [d for d in found if d.key == "layout.use"]
        settle = f"paceline train {first}: the same again, to see how far runs of one job differ"
        if layouts and result == "loss at equal tokens":
            settle = f"paceline prove {first} --layout {layouts[0].values[-1]}: no layout may change the loss"
        return Attribution(result, low, high, "unexplained", (), settle)
    if len(causes) == 1:
        # Within one cause, which key it was is known only when there is one.
        settle = "" if len(able) == 1 else _settling_run(first, able[0])
        return Attribution(result, low, high, causes.pop(), because, settle)
    likeliest = sorted(able, key=lambda d: d.cause != "technique")[0]
    return Attribution(result, low, high, "unexplained", because, _settling_run(first, likeliest))


def _can_move(key: str, result: str) -> bool:
    unable = _NOT_LOSS if result == "loss at equal tokens" else _ONLY_LOSS
    return not key.startswith(unable)


def _settling_run(first: str, difference: Difference) -> str:
    """The first run again with one difference of the last: what then remains is due to the others."""
    key, value = difference.key, difference.values[-1]
    if difference.cause == "technique" and value is not None:
        given = value if isinstance(value, str) else json.dumps(value)
        return f"paceline train {first} --set {key}={given}"
    return f"the job of {first} again with the last run's {key}, and nothing else changed"

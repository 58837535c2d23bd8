"""What a replay found: each step as the run recorded it and as it came out again, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

TOLERANCE = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 3e-2}
"""Largest relative difference of loss and gradient norm between layouts, by the precision of the job."""


@dataclass(frozen=True)
class Replayed:
    """One step; a number that is not finite is NaN, one that is not recorded None."""

    step: int
    loss: float | None
    grad_norm: float | None
    loss_again: float | None
    grad_norm_again: float | None
    skipped: bool = False

    @classmethod
    def of(cls, step: int, recorded: Mapping[str, Any], again: Mapping[str, Any]) -> Replayed:
        """From two rows of ``metrics.jsonl``, each {} where there is none."""
        loss, norm = _number(recorded, "loss"), _number(recorded, "grad_norm")
        loss_again, norm_again = _number(again, "loss"), _number(again, "grad_norm")
        return cls(step, loss, norm, loss_again, norm_again, bool(recorded.get("skipped")))

    @property
    def difference(self) -> float | None:
        """The larger relative difference of loss and gradient norm; 0 for the same bits or twice not finite."""
        found = [_apart(self.loss, self.loss_again), _apart(self.grad_norm, self.grad_norm_again)]
        known = [one for one in found if one is not None]
        return max(known) if known else None


@dataclass(frozen=True)
class Replay:
    """What became of it.

    ``outcome``: ``reproduced``, ``different``, or ``unclear``: another layout agrees at first and rounding has grown
    beyond the tolerance since, or a rule ended the replay before the step. ``ended`` is what a rule said, "" where none
    did; ``first_difference`` a step or None.
    """

    run: str
    step: int
    layout: str
    recorded_layout: str
    precision: str
    source: str
    steps: tuple[Replayed, ...]
    ended: str
    tolerance: float
    outcome: str
    first_difference: int | None

    @property
    def reproduced(self) -> bool:
        """Whether the step came out as it was."""
        return self.outcome == "reproduced"

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; what is not finite is null, and ``nonfinite`` of the step true."""
        rows = [_plain(one) for one in self.steps]
        return asdict(self) | {"steps": rows, "reproduced": self.reproduced}


def judged(
    run: str,
    step: int,
    layout: str,
    recorded_layout: str,
    precision: str,
    source: str,
    steps: Sequence[Replayed],
    ended: str,
) -> Replay:
    """Whether the last step came out as recorded, and the first that did not."""
    allowed = 0.0 if layout == recorded_layout else TOLERANCE.get(precision, TOLERANCE["fp32"])
    apart = [one.step for one in steps if one.difference is not None and one.difference > allowed]
    last = steps[-1]
    unknown = last.loss is None and last.loss_again is None
    reproduced = bool(ended) if unknown else last.difference is not None and last.difference <= allowed
    first = min(apart, default=None)
    unclear = _only_drifts(steps, first, allowed) or _cut_short(steps)
    outcome = "reproduced" if reproduced else "unclear" if unclear else "different"
    return Replay(
        run, step, layout, recorded_layout, precision, source, tuple(steps), ended, allowed, outcome, first
    )


def _cut_short(steps: Sequence[Replayed]) -> bool:
    """Whether the replay did not come to a step that the run finished: the run had gone back, or a rule is new."""
    return steps[-1].loss is not None and steps[-1].loss_again is None


def _only_drifts(steps: Sequence[Replayed], first: int | None, allowed: float) -> bool:
    """Whether finite numbers part after having agreed: what rounding does to a run that is sensitive to it."""
    finite = all(one.difference is not None and math.isfinite(one.difference) for one in steps)
    return finite and allowed > 0 and first is not None and first > steps[0].step


def text(found: Replay) -> str:
    """The table and the verdict."""
    lines = [f"{'step':>8}  {'loss':>12} {'again':>12}  {'grad_norm':>11} {'again':>11}  difference"]
    for one in found.steps:
        numbers = (one.loss, one.loss_again, one.grad_norm, one.grad_norm_again)
        a, b, c, d = (_shown(value) for value in numbers)
        apart = (
            "" if one.difference is None else "same bits" if one.difference == 0 else f"{one.difference:.1e}"
        )
        lines.append(
            f"{one.step:>8}  {a:>12} {b:>12}  {c:>11} {d:>11}  {apart}{' · left out' if one.skipped else ''}"
        )
    for number, line in enumerate(found.ended.splitlines()):
        lines.append(f"{'found' if not number else '':<8} {line}")
    return "\n".join([*lines, f"verdict  {verdict(found)}"])


def verdict(found: Replay) -> str:
    """One sentence."""
    where = f"step {found.step} on {found.layout}"
    if found.reproduced:
        if found.tolerance == 0:
            return f"reproduced: {where} gives the recorded numbers bit for bit: batch, weights and code make them"
        return f"reproduced: {where} agrees within {found.tolerance:g}: batch, weights and code make these numbers"
    first = found.first_difference
    if _cut_short(found.steps):
        return (
            f"cannot be told: a rule ended the replay from {found.source} before step {found.step}; where the run went "
            "back there, a later checkpoint is needed (checkpoint.keep)"
        )
    if found.outcome == "unclear":
        return (
            f"cannot be told: {where} agrees before step {first} and not from there on, as rounding that grows does; "
            f"next: paceline replay {found.run} --step {found.step} --layout run"
        )
    if found.layout == found.recorded_layout:
        return f"not reproduced: {where} first differs at step {first}: the device, the environment or the data changed"
    return (
        f"not reproduced: {where} first differs at step {first}: the layout {found.recorded_layout}, its devices or "
        f"the environment; next: paceline replay {found.run} --step {found.step} --layout run"
    )


def _number(row: Mapping[str, Any], name: str) -> float | None:
    if not row:
        return None
    value = row.get(name)
    return math.nan if value is None else float(value)


def _apart(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return None
    if not math.isfinite(one) or not math.isfinite(other):
        return 0.0 if math.isfinite(one) == math.isfinite(other) else math.inf
    return abs(one - other) / max(abs(one), abs(other), 1e-30)


def _plain(one: Replayed) -> dict[str, Any]:
    values = asdict(one) | {"difference": one.difference}
    bad = [v for v in values.values() if isinstance(v, float) and not math.isfinite(v)]
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    return finite | {"nonfinite": bool(bad)}


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"

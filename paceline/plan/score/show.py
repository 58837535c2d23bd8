"""The score as text: errors by source, ranking, worst runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.plan.score.errors import Errors, off, worst
from paceline.plan.score.ranking import Ranking
from paceline.plan.score.score import Score

MOST_REASONS = 5


def text(score: Score, *, groups: bool = False) -> str:
    """All of it, for a terminal of 100 columns."""
    predicted = len(score.scored) - len(score.refused)
    head = f"score    {predicted} of {len(score.scored)} runs predicted"
    own = f"with {score.anchors} of its own group" if score.anchors else "none from its own group"
    lines = [f"{head} · calibrated on {score.learnt}, {own}"]
    lines += _refused(score)
    whole = score.all()
    if whole is None:
        return "\n".join([*lines, "judged   none: no run has a measured time and enough of its cells"])
    lines += ["", *_table("source", [*score.sources(), whole])]
    if groups:
        lines += ["", *_table("group", score.groups())]
    lines += ["", *_rankings(score), *_worst(score)]
    return "\n".join(lines)


def _refused(score: Score) -> list[str]:
    reasons = score.to_dict()["refused"]
    shown = [f"{count} {reason}" for reason, count in list(reasons.items())[:MOST_REASONS]]
    return [f"refused  {len(score.refused)}: {' · '.join(shown)}"] if shown else []


def _table(name: str, rows: Sequence[Errors]) -> list[str]:
    size = max(len(row.name) for row in rows)
    head = f" {name:<{size}}   runs  median   p90  signed  in 90 %  high/low"
    return [head, *(_row(row, size) for row in rows)]


def _row(row: Errors, size: int) -> str:
    errors = f"{row.median:7.1%}{row.p90:7.1%} {math.expm1(row.signed):+7.1%}"
    return f" {row.name:<{size}} {row.runs:6d} {errors}  {row.covered:6.0%}  {row.width:7.2f}"


def _rankings(score: Score) -> list[str]:
    both = (("one host", score.ranking(False)), ("several hosts", score.ranking(True)))
    return [line for name, found in both if found for line in (_ranking(name, found),)]


def _ranking(name: str, found: Ranking) -> str:
    rho = f"Spearman {found.spearman:.2f} [{found.spearman_low:.2f}, {found.spearman_high:.2f}]"
    lost = f"regret {found.regret:.1%} [{found.regret_low:.1%}, {found.regret_high:.1%}]"
    return f"ranking  {name}: {found.contests} contests · {rho} · {lost} mean, {found.regret_max:.1%} worst"


def _worst(score: Score) -> list[str]:
    lines = []
    for one in worst(score.scored):
        assert one.case is not None
        where = f"{one.run.n_gpus} {one.run.gpu_type}"
        lines.append(f"worst    {math.exp(off(one)):.2f}× {one.run.id} · {where} · {one.case.layout}")
    return lines

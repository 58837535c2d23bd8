"""The layouts of a plan that are statistically no different from the chosen one."""

from __future__ import annotations

from typing import Any

from paceline.plan.answer import Candidate, Plan
from paceline.plan.decide import chance_faster
from paceline.plan.layout import Layout
from paceline.plan.weigh import Question

TIED = 0.1
"""Probability of being faster from which a layout counts as tied."""


def tied(plan: Plan) -> list[dict[str, Any]]:
    """What is statistically no different from the chosen: each cut with its probability of being faster.

    The likeliest first. The error that both share is cancelled (``chance.faster``). Under the objective ``memory``
    nothing is tied: bytes are counted; nor where layouts were run: then verdicts say it.
    """
    question = plan.question
    measured = plan.best.predicted_s is not None
    if question is None or question.objective == "memory" or measured:
        return []
    seen: dict[Layout, tuple[float, Candidate]] = {}
    for candidate in plan.priced:
        cut = candidate.layout.cut
        if cut == plan.best.layout.cut or _apart(question, candidate, plan.best):
            continue
        p = chance_faster(question, candidate, plan.best)
        if p >= TIED and (cut not in seen or p > seen[cut][0]):
            seen[cut] = p, candidate
    told = sorted(seen.values(), key=lambda one: -one[0])
    word = "cheaper" if question.objective == "cost" else "faster"
    return [
        {
            "layout": str(c.layout),
            f"p_{word}": p,
            "step_s": list(c.step_s),
            "memory_gib": c.memory_gib[2],
            "scope": c.scope,
        }
        for p, c in told
    ]


def _apart(question: Question, slower: Candidate, best: Candidate) -> bool:
    """Whether their 90 % intervals do not meet: the probability is then under 5 %, and need not be computed.

    Of two independent errors s and t it is that of 1.64 · (s + t) over √(s² + t²), and a shared one only helps.
    """
    return question.objective == "time" and slower.step_s[0] > best.step_s[2]

"""From how many experiments on one's own cluster is cheaper than the cheapest rented one."""

from __future__ import annotations

import math
from collections.abc import Mapping

from paceline.plan.hardware.choose import Choice, Tried
from paceline.plan.weigh import Question


def pays_from(usd_initial: float, usd_running: float, usd_rented: float) -> int | None:
    """The least number of experiments at which ``usd_initial / n + usd_running`` is at most ``usd_rented``.

    None where running alone costs as much as renting: it never pays.
    """
    saved = usd_rented - usd_running
    return max(1, math.ceil(usd_initial / saved)) if saved > 0 else None


def crossings(choice: Choice, questions: Mapping[str, Question]) -> list[str]:
    """A sentence for each own cluster whose initial cost is spread over experiments, against the cheapest rented."""
    owned = [e for e in choice.entries if questions[e.tried.name].cluster.own is not None]
    if not owned:
        return []
    rented = choice.cheapest(lambda entry: questions[entry.tried.name].cluster.own is None)
    if rented is None or rented.usd is None:
        return []
    told = [_told(choice.of(entry), questions[entry.tried.name], rented) for entry in owned]
    return [text for text in told if text]


def _told(mine: Tried, question: Question, rented: Tried) -> str:
    own = question.cluster.own
    if own is None or own.usd_initial is None or own.experiments is None or mine.word != "fits":
        return ""
    running = sum(usd for name, usd in mine.usd_parts if name != "initial")
    count = pays_from(own.usd_initial, running, rented.usd or 0.0)
    if count is None:
        return f"{mine.name} never pays: running it costs as much as renting {rented.name}"
    here = f", {own.experiments:g} are stated"
    return f"{mine.name} pays from {count} such experiments on, against {rented.name}{here}"

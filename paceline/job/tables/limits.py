"""``[limits]`` and ``[rollout]``: what may happen with nobody watching. Not in this version."""

from __future__ import annotations

from typing import Any

from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Interval, Strings

ACTIONS = ("alert", "gather", "ask", "abstain", "skip", "rollback", "stop")


def _key(default: Any, meaning: str, form: str, shown: str = "–", **limits: Any) -> Any:
    return key(default, meaning, form=form, shown=shown, arrives="05", **limits)


class LimitsTable(Table):
    """Counted across restarts and requeues; reached = checkpoint and stop (45)."""

    usd: float | None = _key(None, "money", "float", gt=0)
    device_hours: float | None = _key(None, "device time", "float", gt=0)
    energy_kwh: float | None = _key(None, "energy", "float", gt=0)
    deadline: str | None = _key(None, "time of day and date", "time")
    restarts: int | None = _key(None, "restarts in all", "int", ge=0)
    allow: Strings = _key(ACTIONS, "actions that may happen unwatched", "list of actions", "all but fallback")


class RolloutTable(Table):
    """A new layout goes shadow → K steps → all; without ``stop_if`` it is refused."""

    stages: Strings = _key((), "stages of the change", "list")
    every: Interval | None = _key(None, "period of one change", "Interval")
    adopt_if: Strings = _key((), "rules that adopt", "rules")
    stop_if: Strings = _key((), "rules that stop", "rules")
    approval: bool = _key(False, "`runs approve RUN` is the gate", "bool")

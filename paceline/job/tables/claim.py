"""``[claim]``: what distributing should gain, fixed before the run. Not in this version."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Strings


def _key(default: Any, meaning: str, form: str = "", shown: str = "", group: str = "", **limits: Any) -> Any:
    return key(default, meaning, form=form, shown=shown, group=group, arrives="05", **limits)


class ConditionsTable(Table):
    """Conditions under which the verdict holds."""

    load: Literal["alone", "competing", "both"] = _key("both", "other work on the machine")
    start: Literal["cold", "warm", "both"] = _key("warm", "caches before a trial")


class ClaimTable(Table):
    """Hashed before the first trial."""

    metric: str = _key("cost_to_loss", "metrics key, cost_to_loss or time_to_loss", "str")
    at_least: float | None = _key(
        None, "accept from this many times the baseline", "float", "required", "accept", gt=0
    )
    at_most: float | None = _key(
        None, "accept up to this many times the baseline", "float", "required", "accept", gt=0
    )
    refuted_below: float | None = _key(None, "refuted below", "float", "derived", "refute", gt=0)
    refuted_above: float | None = _key(None, "refuted above", "float", "derived", "refute", gt=0)
    decision: str = _key("", "what it supports", "str", "required")
    population: str = _key("", "for which data groups and job sizes", "str", "required")
    if_wrong: str = _key("", "what a wrong answer costs", "str", "required")
    owner: str = _key("", "who answers for it", "str", "required")
    unit: Literal["step", "run", "run_with_failures"] = _key("run", "unit of analysis")
    baselines: Strings = _key(("host", "shortcut"), "layouts, host, shortcut", "list of str")
    target_loss: float | None = _key(None, "held-out loss to reach", "float", "–", gt=0)
    max_loss_increase: float = _key(0.01, "held-out loss that may be lost", "fraction", ge=0, lt=1)
    steps: int = _key(50, "steps of a trial", "int", ge=1)
    trials: int = _key(5, "trials of each side, interleaved", "int", ge=1)
    confidence: float = _key(0.95, "confidence of the interval", "fraction", gt=0, lt=1)
    conditions: ConditionsTable = Field(
        default_factory=ConditionsTable, description="where the verdict holds"
    )

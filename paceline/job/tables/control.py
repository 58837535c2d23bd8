"""``[control.NAME]``: a rule on a metric and what it does. Not in this version."""

from __future__ import annotations

from typing import Any

from paceline.job.tables.table import Table, key


def _key(default: Any, meaning: str, form: str, shown: str = "", group: str = "", **limits: Any) -> Any:
    return key(default, meaning, form=form, shown=shown, group=group, arrives="05", **limits)


class ControlTable(Table):
    """One rule; more than ``alert`` needs an owner."""

    signal: str | None = _key(None, "metrics key", "str", "NAME")
    above: float | None = _key(None, "fires above", "float", "–", "threshold")
    below: float | None = _key(None, "fires below", "float", "–", "threshold")
    for_steps: int = _key(1, "steps in a row", "int", ge=1)
    action: str = _key("alert", "alert, gather, ask, abstain, skip, rollback, fallback:LAYOUT or stop", "str")
    owner: str = _key("", "who answers for it", "str")

"""The rules of a run on rank 0: each that fires is told, and those of finished steps are judged by their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from paceline.update.controls import Rule, Verdict

Row = dict[str, Any]


def fired_row(step: int, verdict: Verdict, **more: Any) -> Row:
    """What an event's row says of a rule that fired on a step."""
    kept = {name: value for name, value in asdict(verdict).items() if value != "" and name != "signal"}
    return {"step": step, "event": "control", "detail": kept | more}


class Watch:
    """Passes rows on, and stops the run when a rule on finished steps says so.

    Args:
        rules: those that rows are judged by (:func:`~paceline.update.controls.of_rows`).
        emit: gets each row. tell: gets each verdict on a step's row, with the step.
    """

    def __init__(
        self, rules: Sequence[Rule], emit: Callable[[Row], None], tell: Callable[[int, Verdict], None]
    ) -> None:
        self._rules, self._emit, self._tell = rules, emit, tell
        self._held = dict.fromkeys((rule.name for rule in rules), 0)
        self.halted: Verdict | None = None

    def row(self, row: Row) -> None:
        """A finished step's row."""
        self._emit(row)
        for rule in self._rules:
            value = row.get(rule.signal)
            self._held[rule.name] = self._held[rule.name] + 1 if _holds(rule, value) else 0
            if self._held[rule.name] == rule.for_steps:
                self._fire(rule, row)

    def stop(self) -> str | None:
        """The loop's reason to end after this step."""
        return None if self.halted is None else "control"

    def _fire(self, rule: Rule, row: Mapping[str, Any]) -> None:
        seen = f"{rule.signal} = {row[rule.signal]:.6g}, {rule.threshold}"
        verdict = Verdict(rule.name, rule.action, seen, rule.signal, rule.owner)
        self._tell(int(row["step"]), verdict)
        if verdict.acts and self.halted is None:
            self.halted = verdict


def _holds(rule: Rule, value: object) -> bool:
    return isinstance(value, int | float) and rule.holds(float(value))

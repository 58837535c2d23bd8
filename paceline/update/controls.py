"""Rules that watch a run, judged by a pure function of numbers that every rank holds equally.

Armed without being written: ``nonfinite``. A loss or a gradient norm that is not finite ends the run before the
weights are touched, so that the last checkpoint is the last good state.

What a rule needs to remember of earlier steps is a short row of numbers (:func:`remembered`), which goes along with
every finished step and every checkpoint: a run that goes on decides as if it had never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.job.tables.control import AT_STEP, BETWEEN_STEPS, MOST_RULES, OF_ROW, ControlTable

SPAN = 16
"""The usual loss and gradient norm are their mean over about so many steps that changed the weights."""
SETTLED = 8
"""Before so many steps nothing is usual, and no ratio is known."""
MOST_SKIPPED = 10
"""So many steps in a row that a rule leaves out are no training: it stops instead."""

_LOSS, _NORM, _SEEN, _SKIPPED, _HELD = 0, 1, 2, 3, 4
REMEMBERED = _HELD + MOST_RULES
SEVERITY = ("alert", "skip", "rollback", "stop")
BUILT_IN_OWNER = "whoever started the run"


@dataclass(frozen=True)
class Rule:
    """Fires when ``signal`` has been above ``above``, or below ``below``, for ``for_steps`` steps in a row."""

    name: str
    signal: str
    above: float | None = None
    below: float | None = None
    for_steps: int = 1
    action: str = "alert"
    owner: str = BUILT_IN_OWNER

    def holds(self, value: float) -> bool:
        """Whether a signal is beyond the threshold; NaN is beyond none."""
        if self.above is not None and value > self.above:
            return True
        return self.below is not None and value < self.below

    @property
    def threshold(self) -> str:
        """In words."""
        told = f"above {self.above:g}" if self.above is not None else f"below {self.below:g}"
        return told if self.for_steps == 1 else f"{told} for {self.for_steps} steps"


@dataclass(frozen=True)
class Verdict:
    """What a rule says of a step: its name, the action, the value that it saw, and where that came from."""

    control: str
    action: str
    seen: str
    signal: str = "nonfinite"
    owner: str = BUILT_IN_OWNER
    origin: str = ""

    @property
    def acts(self) -> bool:
        """Whether the step does not change the weights."""
        return self.action != "alert"

    @property
    def ends(self) -> bool:
        """Whether the step does not count as finished: the run ends before it, or goes back."""
        return self.action in ("rollback", "stop")


NONFINITE = Rule("nonfinite", "nonfinite", above=0.0, action="stop")
REPLICAS = Rule("replicas", "replicas", above=0.0, action="stop")


def armed(tables: Mapping[str, ControlTable] | None) -> tuple[Rule, ...]:
    """The rules that watch a run's steps: those written, and what is armed without being written."""
    rules = [_rule(name, table) for name, table in (tables or {}).items()]
    for built_in in (
        REPLICAS,
        NONFINITE,
    ):  # one that only alerts does not disarm it: no run ends well with a wrong model
        if not any(rule.signal == built_in.signal and rule.action != "alert" for rule in rules):
            rules.insert(0, built_in)
    return tuple(rules)


def at_step(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Those that all ranks judge before the weights change."""
    return tuple(rule for rule in rules if rule.signal in AT_STEP)


def of_rows(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Those that rank 0 judges by the finished step's row."""
    return tuple(rule for rule in rules if rule.signal in OF_ROW)


def between_steps(rules: Sequence[Rule], signal: str, seen: str) -> list[Verdict]:
    """What all ranks say of a yes-or-no ``signal`` that they have found after a step, the most severe first."""
    found = [Verdict(r.name, r.action, seen, signal, r.owner) for r in rules if r.signal == signal]
    return sorted(found, key=lambda verdict: -SEVERITY.index(verdict.action))


def _rule(name: str, table: ControlTable) -> Rule:
    signal = table.signal or name
    above = (
        0.0
        if signal in ("nonfinite", *BETWEEN_STEPS) and table.above is None and table.below is None
        else table.above
    )
    return Rule(name, signal, above, table.below, table.for_steps, table.action, table.owner)


def nothing_remembered() -> tuple[float, ...]:
    """Of a run that has not begun."""
    return (0.0,) * REMEMBERED


def restored(scalars: Mapping[str, Any], rules: Sequence[Rule]) -> tuple[float, ...]:
    """What rules remember at the start of a run that goes on, from :func:`kept` or a finished step's numbers.

    Of rules that have changed since, how long they held is forgotten; what is usual is not.
    """
    memory = tuple(float(value) for value in scalars.get("remembered", ()))
    if len(memory) != REMEMBERED:
        return nothing_remembered()
    same = scalars.get("rules", _names(rules)) == _names(rules)
    return memory if same else (*memory[:_HELD], *[0.0] * MOST_RULES)


def kept(memory: Sequence[float], rules: Sequence[Rule]) -> dict[str, Any]:
    """For a checkpoint's scalars."""
    return {"remembered": list(memory), "rules": _names(rules)}


def _names(rules: Sequence[Rule]) -> list[str]:
    return [rule.name for rule in rules]


def signals(loss: float, grad_norm: float, memory: Sequence[float]) -> dict[str, float]:
    """What rules see of a step before it changes the weights; a ratio only where the usual value is known."""
    finite = math.isfinite(loss) and math.isfinite(grad_norm)
    found = {"nonfinite": float(not finite), "loss": loss, "grad_norm": grad_norm}
    if memory[_SEEN] >= SETTLED:
        for name, value, usual in (("loss", loss, memory[_LOSS]), ("grad_norm", grad_norm, memory[_NORM])):
            if usual > 0:
                found[f"{name}_ratio"] = value / usual
    return found


def judge(
    rules: Sequence[Rule], seen: Mapping[str, float], memory: Sequence[float]
) -> tuple[list[Verdict], tuple[float, ...]]:
    """What fires on a step's signals, the most severe first, and what is then remembered.

    Args:
        rules: at most :data:`MOST_RULES` + 1, those of :func:`at_step`, in the same order at every step.
        seen: :func:`signals` of the step.
        memory: what the step before left.
    """
    held, fired = [], []
    for rule, before in zip(rules, _held(rules, memory), strict=True):
        count = before + 1 if rule.signal in seen and rule.holds(seen[rule.signal]) else 0
        held.append(float(count))
        # an alert is told when it begins, what acts acts on every step that it holds
        if count == rule.for_steps or (count > rule.for_steps and rule.action != "alert"):
            fired.append(_verdict(rule, seen))
    fired.sort(key=lambda verdict: -SEVERITY.index(verdict.action))
    if fired and fired[0].action == "skip" and memory[_SKIPPED] + 1 >= MOST_SKIPPED:
        fired[0] = _given_up(fired[0])
    return fired, remembered(seen, memory, held, fired[0].action if fired else "alert")


def remembered(
    seen: Mapping[str, float], memory: Sequence[float], held: Sequence[float], action: str
) -> tuple[float, ...]:
    """The row of numbers after a step: means of what is usual, steps in a row left out, and how long rules held."""
    loss, norm, count = memory[_LOSS], memory[_NORM], memory[_SEEN]
    skipped = memory[_SKIPPED] + 1 if action == "skip" else 0.0
    if action == "alert" and not seen["nonfinite"]:
        count += 1
        weight = 1.0 / min(count, SPAN)
        loss += (seen["loss"] - loss) * weight
        norm += (seen["grad_norm"] - norm) * weight
    last = held[-MOST_RULES:]
    return (loss, norm, count, skipped, *last, *[0.0] * (MOST_RULES - len(last)))


def was_skipped(memory: Sequence[float]) -> bool:
    """Whether the step that left this was not used."""
    return memory[_SKIPPED] > 0


def _held(rules: Sequence[Rule], memory: Sequence[float]) -> list[float]:
    """For each rule, the steps in a row that it has held; the built-in one, first, needs none of them."""
    before = list(memory[_HELD:REMEMBERED])
    return [0.0] * max(0, len(rules) - MOST_RULES) + before[: min(len(rules), MOST_RULES)]


def _verdict(rule: Rule, seen: Mapping[str, float]) -> Verdict:
    if rule.signal == "nonfinite":
        bad = next((name for name in ("loss", "grad_norm") if not math.isfinite(seen[name])), "loss")
        told = f"{bad} = {seen[bad]}"
    else:
        told = f"{rule.signal} = {seen[rule.signal]:.6g}, {rule.threshold}"
    return Verdict(rule.name, rule.action, told, rule.signal, rule.owner)


def _given_up(verdict: Verdict) -> Verdict:
    told = f"{verdict.seen}; {MOST_SKIPPED} steps in a row left out by this rule"
    return Verdict(verdict.control, "stop", told, verdict.signal, verdict.owner)

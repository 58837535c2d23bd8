"""What a table alone cannot say of ``[control.NAME]``: which signal, threshold, action and owner go together."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from paceline.job.tables.control import ACTIONS, AT_STEP, BETWEEN_STEPS, MOST_RULES, OF_ROW, ControlTable
from paceline.ledger.outcome import Exit, Refused

SIGNALS = (*AT_STEP, *BETWEEN_STEPS, *OF_ROW)
YES_OR_NO = ("nonfinite", *BETWEEN_STEPS)
_LEAVES_OUT = ("skip", "rollback")


def check_controls(rules: Mapping[str, ControlTable]) -> None:
    """Refuse (2) a rule that could never fire, would act too late, or that nobody answers for."""
    if len(rules) > MOST_RULES:
        raise _refused(
            "control",
            "too many rules",
            seen=f"{len(rules)} tables [control.NAME]",
            rule="how long each has held is kept with every step",
            allowed=f"at most {MOST_RULES}",
            use="leave out the rules that only alert: metrics.jsonl has every signal of every step",
        )
    for name, rule in rules.items():
        _check(f"control.{name}", name, rule)


def _check(key: str, name: str, rule: ControlTable) -> None:
    signal = rule.signal or name
    if signal not in SIGNALS:
        near = get_close_matches(signal, SIGNALS, n=1)
        raise _refused(
            f"{key}.signal",
            f"no metric is called {signal}",
            seen=f'signal = "{signal}"' if rule.signal else f"[{key}] watches what it is called by",
            rule="a rule watches a number that each step has",
            allowed=", ".join(SIGNALS),
            use=f'[{key}] signal = "{near[0] if near else "loss_ratio"}"',
        )
    if rule.action not in ACTIONS:
        raise _refused(
            f"{key}.action",
            "unknown action",
            seen=f'action = "{rule.action}"',
            rule="what a rule does when it fires",
            allowed=", ".join(ACTIONS),
            use=f'[{key}] action = "{next(iter(get_close_matches(rule.action, ACTIONS, n=1)), "alert")}"',
        )
    if rule.above is None and rule.below is None and signal not in YES_OR_NO:
        raise _refused(
            f"{key}.above",
            "a rule without a threshold",
            seen=f"[{key}] has neither above nor below",
            rule="a rule fires when its signal is above, or below, a number",
            use=f"[{key}] above = …",
        )
    may_leave_out = AT_STEP if rule.action == "skip" else (*AT_STEP, *BETWEEN_STEPS)
    if rule.action in _LEAVES_OUT and signal not in may_leave_out:
        raise _refused(
            f"{key}.action",
            f"{rule.action} is too late for {signal}",
            seen=f'signal = "{signal}", action = "{rule.action}"',
            rule=f"{signal} is known when its step has changed the weights: the step cannot be left out any more",
            allowed=f"{rule.action}: on {', '.join(may_leave_out)}",
            use=f'[{key}] action = "stop", or another signal',
        )
    if rule.action != "alert" and not rule.owner.strip():
        raise _refused(
            f"{key}.owner",
            f"nobody answers for {rule.action}",
            seen=f'[{key}] action = "{rule.action}" without an owner',
            rule="a rule that does more than alert names who answers for it",
            use=f'[{key}] owner = "you@example.org"',
        )


def _refused(key: str, message: str, **told: str) -> Refused:
    return Refused(message, exit_code=Exit.USAGE, key=key, **told)

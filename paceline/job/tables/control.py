"""``[control.NAME]``: a rule on a metric and what it does."""

from __future__ import annotations

from paceline.job.tables.table import Table, key

ACTIONS = ("alert", "skip", "rollback", "stop")
LATER_ACTIONS = {"gather": "05", "ask": "05", "abstain": "05", "fallback": "05"}
AT_STEP = ("nonfinite", "loss", "grad_norm", "loss_ratio", "grad_norm_ratio")
"""Signals that every rank knows before a step's weights change, so that the step can still be left out."""
BETWEEN_STEPS = ("replicas",)
"""Signals that all ranks find out together after a step: 1 where two that hold the same weights differ."""
OF_ROW = (
    *("bits_per_byte", "lr", "tokens", "samples", "epoch", "step_time_s", "tokens_per_s"),
    *("tokens_per_s_per_device", "tflops_per_device", "mfu", "memory_gib", "memory_allocated_gib"),
    *("exposed_communication", "bubble", "data_wait", "checkpoint_stall", "goodput", "skipped"),
    *("cost_usd", "aux_loss", "expert_load_max"),
)
"""Signals that a row of ``metrics.jsonl`` has once its step is over."""
MOST_RULES = 12
"""As many counts of steps in a row are kept with each finished step."""


class ControlTable(Table):
    """One rule; more than ``alert`` needs an owner."""

    signal: str | None = key(None, "metrics key", form="str", shown="NAME")
    above: float | None = key(None, "fires above", form="float", shown="–", group="threshold")
    below: float | None = key(None, "fires below", form="float", shown="–", group="threshold")
    for_steps: int = key(1, "steps in a row", form="int", ge=1, le=2**31 - 1)
    action: str = key(
        "alert",
        "alert, gather, ask, abstain, skip, rollback, fallback:LAYOUT or stop",
        form="str",
        later=LATER_ACTIONS,
    )
    owner: str = key("", "who answers for it", form="str")

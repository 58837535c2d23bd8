"""Rules that watch a run, judged by a pure function of numbers that every rank holds equally.

Armed without being written: ``nonfinite``. A loss or a gradient norm that is not finite ends the run before the
weights are touched, so that the last checkpoint is the last good state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What a rule says of a step: its name, the action, the value that it saw, and where that came from."""

    control: str
    action: str
    seen: str
    origin: str = ""


def judge(loss: float, grad_norm: float) -> Verdict | None:
    """The first armed rule that fires on a step's global loss and gradient norm, or None."""
    for name, value in (("loss", loss), ("grad_norm", grad_norm)):
        if not math.isfinite(value):
            return Verdict("nonfinite", "stop", f"{name} = {value}")
    return None

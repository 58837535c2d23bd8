"""The learning rate as a function of the step and of nothing local."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Warm-up, then one of four curves.

    Args:
        kind: ``cosine`` (Loshchilov & Hutter, arXiv:1608.03983), ``linear``, ``wsd`` (warm-up, stable, linear
            decay; Hu et al., arXiv:2404.06395) or ``constant``.
        peak: highest rate.
        steps: optimizer steps of the whole run, kept in the checkpoint so that a resume keeps the curve.
        warmup_steps: linear from peak/warmup_steps at step 1 to peak.
        decay_steps: of ``wsd``.
        min_ratio: last rate over peak; ``constant`` ignores it.
    """

    kind: str
    peak: float
    steps: int
    warmup_steps: int
    decay_steps: int
    min_ratio: float

    def rate(self, step: int) -> float:
        """Rate of optimizer step ``step``, counted from 1; past the end the last rate holds."""
        step = min(step, max(self.steps, 1))
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        return self.peak * (self.min_ratio + (1.0 - self.min_ratio) * self._remaining(step))

    def _remaining(self, step: int) -> float:
        """1 at the end of warm-up, 0 at the last step."""
        if self.kind == "constant":
            return 1.0
        start = self.warmup_steps
        if self.kind == "wsd":
            start = max(start, self.steps - self.decay_steps)
            if step <= start:
                return 1.0
        progress = (step - start) / max(1, self.steps - start)
        if self.kind == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        return 1.0 - progress


def as_steps(value: float, steps: int) -> int:
    """A number of steps, or a fraction < 1 of the run, as optimizer steps (transformers 5's convention)."""
    return round(value * steps) if 0 < value < 1 else int(value)

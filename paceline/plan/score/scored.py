"""One measured run with the planner's answer to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.plan import chance
from paceline.plan.answer import GIB
from paceline.plan.calibrate.example import Example, example
from paceline.plan.calibrate.posterior import Posterior, Predicted
from paceline.plan.cost.step import memory_of
from paceline.plan.decide import MEMORY_SIGMA
from paceline.plan.model import flops_per_token
from paceline.plan.published.cases import Case, case_of
from paceline.plan.published.cut import Unstated
from paceline.plan.published.runs import Run
from paceline.plan.speed.gpu import GpuSpeeds

COLUMNS = (
    "id",
    "status",
    "reason",
    "assumed",
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "peak_device_gib",
    "p_oom",
)


@dataclass(frozen=True)
class Scored:
    """A run, and what was predicted; ``reason`` says why nothing was."""

    run: Run
    reason: str = ""
    case: Case | None = None
    example: Example | None = None
    predicted: Predicted | None = None

    def row(self) -> dict[str, Any]:
        """One row of the table of predictions, by :data:`COLUMNS`."""
        found: dict[str, Any] = dict.fromkeys(COLUMNS, "")
        found |= {"id": self.run.id, "status": "refused", "reason": self.reason}
        if self.case is None or self.predicted is None:
            return found
        return found | {"status": "ok", "assumed": "; ".join(self.case.assumed)} | self._figures()

    def _figures(self) -> dict[str, Any]:
        assert self.case is not None
        assert self.predicted is not None
        case, mid = self.case, self.predicted.mid
        devices = case.layout.world_size
        speeds = GpuSpeeds(case.cluster, case.work.precision, software=case.software)
        flops = flops_per_token(case.work.widths, case.work.sequence_length) * case.tokens
        peak = speeds.peak_flops(devices)
        memory = memory_of(case.layout, case.work, speeds, case.cluster)
        limit = case.cluster.memory_of_rank(case.cluster.devices)
        return {
            "step_time_s": _digits(mid),
            "step_time_low_s": _digits(self.predicted.low),
            "step_time_high_s": _digits(self.predicted.high),
            "tokens_per_s_per_gpu": _digits(case.tokens / mid / devices),
            "mfu": _digits(flops / (mid * devices * peak)) if peak else "",
            "peak_allocated_gib": _digits(memory[1] / GIB),
            "peak_reserved_gib": _digits(memory[2] / GIB),
            "peak_device_gib": _digits(memory[3] / GIB),
            "p_oom": f"{chance.exceeds(memory[3], limit, MEMORY_SIGMA):.3f}",
        }


def _digits(value: float) -> str:
    return f"{value:.5g}"


def asked(runs: Iterable[Run]) -> list[Scored]:
    """Each run as a question, or why it is none."""
    return [_asked(run) for run in runs]


def _asked(run: Run) -> Scored:
    try:
        case = case_of(run)
        return Scored(run, case=case, example=example(case))
    except Unstated as why:
        return Scored(run, reason=str(why))


def predicted(questions: Sequence[Scored], posterior: Posterior) -> list[Scored]:
    """With a prediction for every question."""
    examples = [one.example for one in questions if one.example is not None]
    answers = iter(posterior.predict(examples))
    return [
        Scored(one.run, one.reason, one.case, one.example, next(answers)) if one.example else one
        for one in questions
    ]

"""The orders of the installed torch, without a process group: its own classes on stages that do nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import nn
from torch.distributed.pipelining import schedules

CLASSES: dict[str, Any] = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zero-bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}


def make(kind: str, pp: int, vpp: int, micro_batches: int) -> Any:
    """The schedule as torch makes it on rank 0. Raises ValueError where torch refuses the count."""
    stages = [
        SimpleNamespace(
            num_stages=pp * vpp, group_size=pp, group_rank=0, stage_index=stage, submod=nn.Identity()
        )
        for stage in range(vpp)
    ]
    several = kind not in ("gpipe", "1f1b")
    return CLASSES[kind](stages if several else stages[0], micro_batches)


def of_torch(kind: str, pp: int, vpp: int, micro_batches: int) -> list[list[str]]:
    """Rank by rank, in the form in which our actions print."""
    plan = make(kind, pp, vpp, micro_batches).pipeline_order
    return [
        [word for action in plan[rank] if action is not None for word in _words(action)] for rank in range(pp)
    ]


def _words(action: Any) -> list[str]:
    if action.sub_actions:
        first, second = action.sub_actions
        return [f"{first}+", str(second)]
    return [str(action)] if action.computation_type.value in "FBIW" else []


class Recorder:
    """A stage that notes what a single-stage schedule really calls, in order."""

    def __init__(self, rank: int, pp: int) -> None:
        self.stage_index, self.num_stages = rank, pp
        self.group_size, self.group_rank, self.submod = pp, rank, nn.Identity()
        self.is_first, self.is_last, self.has_backward = rank == 0, False, True
        self.calls: list[str] = []

    def forward_one_chunk(self, micro_batch: int, *args: Any, **kwargs: Any) -> None:
        self.calls.append(f"{self.stage_index}F{micro_batch}")

    def backward_one_chunk(self, micro_batch: int, **kwargs: Any) -> None:
        self.calls.append(f"{self.stage_index}B{micro_batch}")

    def perform_reduce_grad(self, factor: int) -> None:
        self.calls.append(f"reduce/{factor}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("get_"):
            return lambda micro_batch: []
        raise AttributeError(name)


def really_run(kind: str, rank: int, pp: int, micro_batches: int) -> list[str]:
    """What a rank's ``step`` of gpipe or 1f1b does: these two do not run from a printed order."""
    stage = Recorder(rank, pp)
    schedule = CLASSES[kind](stage, micro_batches, scale_grads=False)
    schedule._initialize_stage = lambda *args: None
    schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
    assert stage.calls.pop() == "reduce/1"
    return stage.calls

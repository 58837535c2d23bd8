"""A published run as a question to the planner: which work, on which cluster, cut how; and what it measured."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan.cluster import Cluster
from paceline.plan.cost.terms import Work
from paceline.plan.layout import Layout
from paceline.plan.published.cut import Unstated, layout_of
from paceline.plan.published.place import accelerator_of, cluster_of
from paceline.plan.published.runs import Run
from paceline.plan.published.shape import widths_of
from paceline.plan.speed.rates import Software

TASKS = ("pretrain", "sft", "")
KINDS = ("dense", "moe", "encoder", "")
SIXTEEN = ("bf16", "fp16", "")
UNFUSED = ("DeepSpeed", "Megatron-LM", "LiBai", "DeepLearningExamples")
"""Programs whose rows, unless they say so, ran before attention was fused there."""
FUSED_ANYWAY = ("Megatron Core",)


@dataclass(frozen=True)
class Case:
    """What the planner is asked of a run.

    Attributes:
        measured_s: seconds of a step; None where the run did not measure any.
        assumed: what was filled in for blanks, in the user's words.
    """

    run: Run
    work: Work
    cluster: Cluster
    layout: Layout
    software: Software
    measured_s: float | None
    assumed: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.work.global_batch * self.work.sequence_length


def case_of(run: Run) -> Case:
    """The question that a run answers.

    Raises:
        Unstated: the row says too little or what the planner has no arithmetic for; the message is the reason.
    """
    _check(run)
    sheet = accelerator_of(run)
    if sheet is None:
        raise Unstated(f"accelerator {run.gpu_type} is not in the catalogue")
    widths, assumed = widths_of(run)
    cluster = cluster_of(run, sheet, assumed)
    layout, batch = layout_of(run, assumed)
    precision = "fp32" if run.precision in ("fp32", "tf32") else "bf16"
    if not run.precision:
        assumed.append("precision=bf16")
    products = "" if run.precision in SIXTEEN or run.precision == "fp32" else run.precision
    work = Work(
        widths=widths,
        sequence_length=run.seq_len or 0,
        global_batch=batch,
        precision=precision,
        reduce_bytes=4,
    )
    software = Software(products=products, fused=_fused(run), causal=run.model_kind != "encoder")
    return Case(run, work, cluster, layout, software, measured_s(run, work), tuple(assumed))


def _check(run: Run) -> None:
    for name in ("n_gpus", "layers", "hidden", "seq_len", "gpu_type"):
        if not getattr(run, name):
            raise Unstated(f"{name} is not stated")
    if run.task not in TASKS:
        raise Unstated(f"task {run.task} is not training of all weights")
    if run.model_kind not in KINDS:
        raise Unstated(f"model kind {run.model_kind} has no arithmetic here")


def _fused(run: Run) -> bool:
    if run.flash_attention:
        return run.flash_attention.lower() == "true"
    if any(name in run.framework for name in FUSED_ANYWAY):
        return True
    return not any(name in run.framework for name in UNFUSED)


def measured_s(run: Run, work: Work) -> float | None:
    """Seconds of a step, as stated or from the stated tokens a second of one device."""
    if run.step_time_s:
        return run.step_time_s
    if run.tokens_per_s_per_gpu and run.n_gpus:
        return work.global_batch * work.sequence_length / (run.tokens_per_s_per_gpu * run.n_gpus)
    return None

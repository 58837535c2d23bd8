"""The layout of a published run: its degrees in the words of the layout grammar, and what was assumed."""

from __future__ import annotations

from paceline.plan.layout import Layout
from paceline.plan.published.runs import Run

STAGES = {"ZERO-1": "zero1", "ZERO-2": "zero2", "ZERO-3": "zero3", "FSDP": "zero3", "HSDP": "zero3"}
MICRO_BATCHES_A_STAGE = 4
"""Where a row states no global batch: so many micro-batches for each stage of the pipeline."""


class Unstated(Exception):
    """A row says too little, or something that no layout is; the message is the reason."""


def layout_of(run: Run, assumed: list[str]) -> tuple[Layout, int]:
    """(layout with its micro-batch, sequences a step).

    Raises:
        Unstated: the degrees do not multiply to the devices, or a batch does not divide.
    """
    devices = run.n_gpus or 1
    tp, pp, cp = run.tp or 1, run.pp or 1, run.cp or 1
    if devices % (tp * pp * cp):
        raise Unstated(f"tp·pp·cp = {tp * pp * cp} does not divide {devices} devices")
    data = devices // (tp * pp * cp)
    batch = _global_batch(run, data, pp, assumed)
    mbs = run.micro_batch
    if mbs is None:
        mbs = 1
        assumed.append("micro_batch=1")
    shards, zero = _shards(run, data, assumed)
    interleaved = pp > 1 and (run.vpp or 1) > 1
    if pp > 1 and run.vpp is None:
        assumed.append("vpp=1")
    if not run.recompute:
        assumed.append("recompute=none")
    layout = Layout(
        dp=data // shards,
        fsdp=shards,
        zero=zero,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=run.ep or 1,
        etp=run.etp or 1,
        schedule="interleaved" if interleaved else "1f1b",
        vpp=(run.vpp or 1) if interleaved else (1 if pp > 1 else 0),
        mbs=max(1, min(mbs, -(-batch // data))),
        recompute=run.recompute or "none",
    )
    return layout, batch


def _global_batch(run: Run, data: int, pp: int, assumed: list[str]) -> int:
    if run.global_batch:
        return run.global_batch
    if run.global_batch_tokens and run.seq_len:
        return max(1, run.global_batch_tokens // run.seq_len)
    each = (run.micro_batch or 1) * data
    if run.grad_accum:
        return each * run.grad_accum
    accumulated = MICRO_BATCHES_A_STAGE * pp if pp > 1 else 1
    assumed.append(f"global_batch={each * accumulated}")
    return each * accumulated


def _shards(run: Run, data: int, assumed: list[str]) -> tuple[int, str]:
    """(over how many ranks, which stage). Where nothing is said: the optimizer's state, as is usual."""
    word = run.fsdp_or_zero_stage.upper().replace("FSDP2", "FSDP")
    if data == 1:
        return 1, "zero3"
    if not word:
        assumed.append("optimizer sharded over the data ranks")
        return data, "zero1"
    stage = next((zero for name, zero in STAGES.items() if name in word), "")
    if not stage:
        return 1, "zero3"
    hosts = data // (run.gpus_per_node or data)
    shards = data // hosts if word.startswith("HSDP") and hosts > 1 and data % hosts == 0 else data
    return shards, stage

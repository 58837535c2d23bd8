"""The records of phases 2 to 5, written by rank 0: what each phase was given, decided, measured and hands on.

Phase 1's record is written by whoever planned, before the ranks start; its hand-off is checked here first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.deliver.mesh import Mesh
from paceline.ledger import records
from paceline.ledger.plural import many
from paceline.ledger.records import PhaseRecord
from paceline.plan.grammar import AXES
from paceline.recipes.assemble import Assembly
from paceline.recipes.brief import Brief
from paceline.recipes.feed import Feed
from paceline.recover.write import Saved
from paceline.update.controls import armed
from paceline.update.loop import End
from paceline.update.schedule import Schedule

_OWNER = "whoever started the run"


def check_plan(brief: Brief, vocabulary: int) -> None:
    """Refuse to compute on a hand-off of phase 1 that does not hold any more."""
    plan = records.read(brief.folder, 1)
    if plan is not None:
        records.check_handoff(
            plan,
            {
                "layout": str(brief.planned or brief.layout),
                "global_batch": brief.job.train.global_batch_size,
                "job_hash": brief.identity["job_hash"],
                "data_hash": brief.identity["data_hash"],
                "tokenizer_hash": brief.identity["tokenizer_hash"],
                "vocabulary": vocabulary,
            },
        )


def _shapes_hash(built: Assembly) -> str:
    return records.parameters_hash(dict(built.whole.parameters))


def write_compute(brief: Brief, built: Assembly, feed: Feed, seconds: float) -> None:
    """Phase 2: the model as one device sees it."""
    count = sum(math.prod(shape) for shape in built.whole.parameters.values())
    record = PhaseRecord(
        objective="forward and backward of the job's model on the global batch",
        owner=_OWNER,
        inputs={
            "widths": built.widths.to_dict(),
            "rows": feed.train.rows,
            "held_out_rows": feed.held_out.rows,
            "sequence_length": brief.job.data.sequence_length,
        },
        assumptions=[
            "initial values are a function of (seed, name, index)",
            "rows are a function of (seed, position)",
        ],
        decision={
            "precision": brief.precision,
            "master": str(built.parameters[0].dtype),
            "parameters": count,
        },
        changes="parameters and optimizer state, made on their ranks",
        rejected=[
            {
                "alternative": "autocast",
                "reason": "it is another program on one device than under a sharded layout",
                "value": "not stated",
                "limit": "bit-equal forward",
                "wins_when": "never; weights are cast at the module's edge",
            }
        ],
        shortcut="more devices change nothing here: each computes its own rows",
        evidence={"assembled_in_s": round(seconds, 3), "flops_per_token": brief.flops_per_token},
        check={
            "command": "make test",
            "result": "single equals the plain loop to 1e-12 in float64 (tests/flow)",
        },
        uncertainty="none: arithmetic is deterministic on a CPU",
        resources={"seconds": round(seconds, 3), "parameter_bytes": 4 * count},
        controls="nonfinite (stop), armed",
        handoff={"parameters_hash": _shapes_hash(built)},
        reproduce=f"paceline train {brief.folder.job_toml}",
    )
    records.write(brief.folder, 2, record, attempt=brief.attempt)


def write_deliver(brief: Brief, built: Assembly, mesh: Mesh) -> None:
    """Phase 3: which group carries what."""
    _check(brief, 2, {"parameters_hash": _shapes_hash(built)})
    axes = {axis: mesh.layout.degree(axis) for axis in AXES if mesh.layout.degree(axis) > 1}
    record = PhaseRecord(
        objective="gradients of the global batch on every rank that updates",
        owner=_OWNER,
        inputs={"layout": mesh.layout.full, "axes": axes},
        assumptions=["every replica filled itself with the same bits", "ranks call collectives in one order"],
        decision={
            "reduce_precision": brief.job.train.reduce_precision,
            "zero": mesh.layout.zero if "fsdp" in axes else "no shards",
            "transport": "loopback only" if mesh.world_size > 1 else "none: one rank",
        },
        changes="nothing but where tensors are",
        rejected="none: the layout was chosen in phase 1",
        shortcut="averaging per rank: ranks with few valid tokens would weigh too much",
        evidence="ledger/: each collective with bytes, arrival and wait",
        check={
            "command": "make test",
            "result": "every data layout equals single to 1e-9 in float64 (tests/flow)",
        },
        uncertainty="none in float64; float32 sums differ in the last bits between layouts",
        resources={"ranks": mesh.world_size, "data_ranks": mesh.data_degree},
        controls="none armed",
        handoff={"world_size": mesh.world_size, "mesh": axes},
        reproduce=f"paceline train {brief.folder.job_toml}",
    )
    records.write(brief.folder, 3, record, attempt=brief.attempt)


def write_update(
    brief: Brief, built: Assembly, schedule: Schedule, feed: Feed, mesh: Mesh, end: End | None
) -> None:
    """Phase 4: when a gradient becomes a weight; again at the end with what happened."""
    axes = {axis: mesh.layout.degree(axis) for axis in AXES if mesh.layout.degree(axis) > 1}
    _check(brief, 3, {"world_size": mesh.world_size, "mesh": axes})
    job, step = brief.job, 0 if end is None else end.step
    position = feed.plan.position_of(step)
    fired = (
        "" if end is None or end.verdict is None else f"; fired: {end.verdict.control}, {end.verdict.seen}"
    )
    rules = ", ".join(f"{rule.name} ({rule.action})" for rule in armed(job.control))
    record = PhaseRecord(
        objective=f"{many(schedule.steps, 'optimizer step')} of {many(job.train.global_batch_size, 'sequence')}",
        owner=_OWNER,
        inputs={"optimizer": job.optimizer.model_dump(mode="json"), "steps": schedule.steps},
        assumptions=["the rate is a function of the step and of nothing local"],
        decision={
            "policy": "every_step",
            "loss": "sum over valid tokens of the global batch over their count",
            "clipping": f"global norm {job.optimizer.max_grad_norm}, each parameter once",
        },
        changes="weights and optimizer state, once a step on all ranks",
        rejected="none: update.policy other than every_step is not in this version",
        shortcut="a larger global batch a step: other mathematics, not a faster run of the same",
        evidence={"finished_steps": step, "metrics": "metrics.jsonl"},
        check={"command": "make test", "result": "ten steps equal the plain loop (tests/flow)"},
        uncertainty="not stated",
        resources={"steps": step, "seconds": "ledger/"},
        controls=f"{rules}, armed{fired}; each that fires is an event of metrics.jsonl",
        handoff={
            "step": step,
            "position": position,
            "parameters_hash": _shapes_hash(built),
        },
        reproduce=f"paceline train {brief.folder.job_toml}",
    )
    records.write(brief.folder, 4, record, attempt=brief.attempt)


def write_recover(brief: Brief, built: Assembly, feed: Feed, end: End, saved: Saved | None) -> None:
    """Phase 5: what survives."""
    have = {
        "step": end.step,
        "position": feed.plan.position_of(end.step),
        "parameters_hash": _shapes_hash(built),
    }
    _check(brief, 4, have)
    table = brief.job.checkpoint
    record = PhaseRecord(
        objective="nothing is lost but the steps since the last checkpoint",
        owner=_OWNER,
        inputs={
            "every": str(table.every),
            "keep": table.keep,
            "resumed_from": str(brief.resume or "a fresh start"),
        },
        assumptions=["a rename on the store is atomic", "what reads back with its hash is what was written"],
        decision="sharded safetensors, verified, latest written last",
        changes="checkpoints/",
        rejected=[
            {
                "alternative": "torch.save",
                "reason": "pickle runs code on loading",
                "value": "code",
                "limit": "data only",
                "wins_when": "never",
            }
        ],
        shortcut="saving on one rank only: the others' shards would be gathered over the wire",
        evidence=_saved(saved),
        check={
            "command": f"paceline checkpoint verify {brief.folder.path}",
            "result": "read back after writing",
        },
        uncertainty="not stated",
        resources={
            "bytes": 0 if saved is None else saved.nbytes,
            "seconds": 0 if saved is None else saved.seconds,
        },
        controls=f"restart.max = {brief.job.restart.max}",
        handoff={},
        reproduce=f"paceline train {brief.folder.path} --resume",
    )
    records.write(brief.folder, 5, record, attempt=brief.attempt)


def _saved(saved: Saved | None) -> Mapping[str, Any]:
    if saved is None:
        return {"saved": "nothing in this attempt"}
    return {"step": saved.step, "write_s": round(saved.write_s, 4)}


def _check(brief: Brief, phase: int, have: Mapping[str, Any]) -> None:
    record = records.read(brief.folder, phase)
    if record is not None and record.get("attempt") == brief.attempt:
        records.check_handoff(record, have)

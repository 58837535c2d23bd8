"""The torch half of ``plan --dry-run``: the step of any rank on a fake cluster, what it holds and what it sends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from paceline.job import Job
from paceline.job.presets import ModelWidths
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many
from paceline.plan.dry_run import DryRun, Message, check_question
from paceline.plan.layout import Layout
from paceline.recipes.dry.extend import Design, design, extend, whole, with_depth
from paceline.recipes.dry.step import Question, Trace, fake_step
from paceline.recipes.place import Emit, Place, Stop

LIMIT_S = 300.0
"""A dry run that would take longer is refused after its first part."""

Say = Callable[[str], None]


def run(payload: dict[str, Any], place: Place, emit: Emit, stop: Stop) -> dict[str, Any]:
    """The only rank of a dry run.

    Args:
        payload: ``job``, ``widths``, ``layout`` (closed), ``rank``, ``precision``, ``rows``, ``count`` of
            micro-batches, and optionally ``limit_s`` and ``extend`` (False runs everything).

    Returns:
        A :class:`DryRun` as JSON values.
    """
    torch.set_num_threads(1)  # nothing is computed
    job = Job(**payload["job"])
    asked = Question(
        job=job,
        widths=_widths(payload["widths"]),
        layout=Layout.parse(payload["layout"]),
        rank=int(payload["rank"]),
        precision=payload["precision"],
        rows=int(payload["rows"]),
        count=int(payload["count"]),
        documents=job.data.packing == "masked",
    )

    def say(text: str) -> None:
        emit({"kind": "say", "field": "dry run", "text": text})

    found = dry_run(asked, say, limit_s=payload.get("limit_s", LIMIT_S), extended=payload.get("extend", True))
    return found.to_dict()


def dry_run(asked: Question, say: Say, *, limit_s: float = LIMIT_S, extended: bool = True) -> DryRun:
    """Run what is needed of the step and extend it.

    Args:
        asked: the step.
        say: told what is run.
        limit_s: of processor time; what would take longer is refused.
        extended: False: the whole step is run, whatever its depth.

    Raises:
        Refused: 2: an open layout, a rank that is not there, or a step that takes too long even so.
    """
    check_question(asked.layout, asked.rank)
    began = time.perf_counter()
    chosen = design(asked) if extended else whole(asked)
    traces = _traces(asked, chosen, say, limit_s)
    trace = extend(chosen, traces)
    moment, memory = trace.peak()
    rows = [Message(axis, op, *sums) for (axis, op), sums in trace.calls.items()]
    return DryRun(
        layout=str(asked.layout),
        rank=asked.rank,
        at=asked.layout.coordinates(asked.rank),
        precision=asked.precision,
        micro_batches=asked.count,
        rows=asked.rows,
        parameters=trace.parameters,
        layers=trace.layers,
        memory={kind.label: nbytes for kind, nbytes in memory.items()},
        moment=str(moment),
        moments={str(m): sum(held.values()) for m, held in trace.memory.items()},
        messages=sorted(rows, key=lambda row: (-row.bytes, row.axis, row.op)),
        ran={"layers": chosen.depths.rungs, "micro_batches": chosen.counts.rungs},
        assumed=_assumed(asked, trace),
        seconds=round(time.perf_counter() - began, 3),
    )


def _traces(asked: Question, chosen: Design, say: Say, limit_s: float) -> dict[tuple[int, int], Trace]:
    found: dict[tuple[int, int], Trace] = {}
    for number, run in enumerate(chosen.runs()):
        layers, count = run
        say(f"{many(layers, 'layer')}, {many(count, 'micro-batch')} …")
        began = time.process_time()  # of this process alone: a busy machine is not a large step
        found[run] = fake_step(
            replace(asked, widths=with_depth(asked.widths, layers), count=count, edge=chosen.edge)
        )
        if number == 0:
            _refuse_too_long(asked, chosen, time.process_time() - began, limit_s)
    return found


def _refuse_too_long(asked: Question, chosen: Design, first_s: float, limit_s: float) -> None:
    runs = chosen.runs()
    rest_s = first_s * sum(chosen.work(run) for run in runs[1:]) / chosen.work(runs[0])
    if rest_s <= limit_s:
        return
    batch = max(1, int(asked.job.train.global_batch_size * limit_s / (2 * rest_s)))
    fewer = asked.count > 1 and len(chosen.counts.rungs) > 1
    raise Refused(
        "the dry run of this step takes too long",
        exit_code=Exit.USAGE,
        key="--dry-run",
        seen=f"{first_s:.0f} s for {many(runs[0][0], 'layer')} and {many(runs[0][1], 'micro-batch')}, "
        f"{rest_s:.0f} s more to go",
        rule=f"a dry run ends within {limit_s:.0f} s",
        use=f"--set train.global_batch_size={batch}"
        if fewer
        else "--layout with fewer stages, or fewer ranks",
    )


def _assumed(asked: Question, trace: Trace) -> list[str]:
    found = [
        "operators and kernels of a CPU; no allocator slack, no buffers of the communication library",
        "a step after the first: optimizer state is there",
    ]
    if trace.dealt:
        found.append("balanced routing: each expert gets as many tokens as the others")
    if asked.layout.compile != "off":
        found.append("compile=off: compiled blocks send the same, what they fuse is not counted")
    if asked.layout.dp * asked.layout.fsdp > 1:
        found.append("the other ranks' micro-batches have the same shape, as they do in a run")
    return found


def _widths(values: Mapping[str, Any]) -> ModelWidths:
    kinds = values.get("layer_types")
    return ModelWidths(**{**values, "layer_types": None if kinds is None else tuple(kinds)})

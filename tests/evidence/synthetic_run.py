"""A run folder made up of believable numbers, by the real writers: for the report, compare and their tests.

``python -m tests.evidence.synthetic_run FOLDER`` makes a few of them to look at.
"""

from __future__ import annotations

import math
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from paceline.ledger import manifest as manifests
from paceline.ledger.atomic import write_json, write_text
from paceline.ledger.folder import RunFolder, create
from paceline.ledger.metrics import MetricsWriter
from paceline.ledger.records import HANDOFF, RECORDED, PhaseRecord
from paceline.ledger.records import write as write_record
from paceline.ledger.spans import CallRow, Ledger
from paceline.ledger.status import Status


@dataclass
class FakeClock:
    """Time passes only when told to."""

    now_s: float = 5000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True)
class Story:
    """What happened in the run."""

    name: str = "stdlib"
    ranks: int = 1
    steps: int = 200
    died_at: int | None = None  # the process vanished in this step
    resumed_at: int | None = None  # killed 7 steps later, and resumed from here as a second attempt
    seed: int = 0
    step_s: float = 0.40
    layout: str = ""
    data_hash: str = "sha256:6a1f09"
    slow_rank: int | None = None
    loss_shift: float = 0.0
    usd: bool = False
    job: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def runs_as(self) -> str:
        return self.layout or ("single" if self.ranks == 1 else f"fsdp={self.ranks}")


TOKENS_A_STEP = 8192
BITS_PER_NAT = 0.382  # 1 / ln 2 / 3.78 bytes a token


def loss_at(step: int, story: Story, noise: random.Random) -> float:
    return 4.72 + 4.6 * math.exp(-step / 42) + story.loss_shift + noise.gauss(0, 0.05)


def write_run(root: Path, story: Story = Story()) -> RunFolder:
    """Writes the whole folder and returns it."""
    folder = create(root, story.name)
    last = story.died_at or story.steps
    _write_job(folder, story)
    _write_manifest(folder, story)
    _write_records(folder, story)
    write_json(folder.evidence / "plan.json", plan_dict(story))
    attempts = [(0, 1, last)]
    if story.resumed_at is not None:
        attempts = [(0, 1, story.resumed_at + 7), (1, story.resumed_at + 1, last)]
    _write_metrics(folder, story, attempts)
    for attempt, first, final in attempts:
        clocks = [FakeClock() for _ in range(story.ranks)]
        ledgers = [
            Ledger(folder.ledger(rank), rank, attempt, clocks[rank], start_s=clocks[rank].now_s - 3.1)
            for rank in range(story.ranks)
        ]
        _run_steps(ledgers, clocks, story, first, final)
        if story.died_at is None or attempt < len(attempts) - 1:
            for ledger in ledgers:
                ledger.close()
    for step in range(100, last + 1, 100):
        made = folder.checkpoints / f"step-{step:08d}"
        made.mkdir()
        (made / "shard-00000.safetensors").write_bytes(b"\0" * 63_000)
        write_text(folder.checkpoints / "latest", f"{made.name} {'0' * 32}\n")
    _write_status(folder, story, last, len(attempts) - 1)
    return folder


def _write_job(folder: RunFolder, story: Story) -> None:
    job: dict[str, Any] = {
        "run": {"name": story.name},
        "model": {"preset": "tiny"},
        "data": {"train": "python-stdlib", "sequence_length": 256},
        "train": {"steps": story.steps, "global_batch_size": 32, "precision": "fp32", "seed": story.seed},
        "optimizer": {"name": "adamw", "lr": 3e-4},
        "layout": {"use": story.runs_as},
    }
    for key, value in story.job.items():
        table, _, name = key.partition(".")
        job.setdefault(table, {})[name] = value
    folder.job_toml.write_text(tomli_w.dumps(job))


def _write_manifest(folder: RunFolder, story: Story) -> None:
    made = manifests.new_manifest(
        hashes={
            "data": story.data_hash,
            "tokenizer": "sha256:19c2",
            "job": "sha256:b0",
            "code": "sha256:c4",
            "weights": "random, seed 0",
        },
        preprocessing={"tokenizer": "bpe:8192", "packing": "concat", "documents": 1873, "tokens": 10_900_000},
        evaluation_set="1 % of documents, by hash",
        evaluation_hash="sha256:77",
        baselines={
            "unigram": {"bits_per_byte": 2.67, "loss": 6.99},
            "trigram": {"bits_per_byte": 2.02, "loss": 5.29},
        },
        hardware_assumed={"cpu": "2 cores", "peak": "92 GFLOP/s fp32 (measured)"},
        hardware_found={"cpu": "2 cores, AVX2", "memory": "8 GiB"},
        environment={"OMP_NUM_THREADS": "2", "HOME": "/home/me"},
        data_licence="PSF-2.0",
        origins={"model.preset": "job.toml:2", "train.steps": "--set", "optimizer.lr": "default"},
        versions={
            "torch": "2.13.0",
            "paceline": "0.1.0",
            "numpy": "2.3.1",
            "tokenizers": "0.22.1",
            **story.versions,
        },
    )
    made["evaluation"]["times_read"] = 11
    manifests.write(folder, made)


def _write_records(folder: RunFolder, story: Story) -> None:
    for n, phase in enumerate(RECORDED, start=1):
        if story.died_at is not None and n > 3:
            continue
        handoff = {name: f"{name} …" for name in HANDOFF[phase]}
        record = PhaseRecord(
            objective={"plan": "least time", "compute": "one device's gradients, as if alone"}.get(
                phase, "not stated"
            ),
            owner="whoever started the run",
            inputs={"job": f"{story.name}.toml", "tokens_per_step": TOKENS_A_STEP},
            assumptions=["matmul peak 92 GFLOP/s (measured)", "both ranks share one memory bus"],
            decision={"layout": story.runs_as},
            changes="none: a plan changes no state" if n == 1 else "not stated",
            evidence={"step_s_p50": story.step_s},
            resources={"seconds": 12.5, "memory_gib": 1.2},
            handoff=handoff or "not stated",
            reproduce=f"paceline train {story.name}.toml --layout {story.runs_as}",
        )
        write_record(folder, n, record)


def _write_metrics(folder: RunFolder, story: Story, attempts: list[tuple[int, int, int]]) -> None:
    writer = MetricsWriter(folder.metrics)
    now_s = 3.1
    for attempt, first, final in attempts:
        noise = random.Random(story.seed * 31 + attempt)
        if attempt:
            writer.write(_row("event", first - 1, attempt, now_s, event="restart", detail="resumed"))
        for step in range(first, final + 1):
            seconds = story.step_s * (1 + abs(noise.gauss(0, 0.03)) + (1.5 if step == first else 0))
            seconds *= 2.2 if noise.random() < 0.01 else 1
            now_s += seconds
            loss = loss_at(step, story, noise)
            row = _row("train", step, attempt, now_s, loss=loss, bits_per_byte=loss * BITS_PER_NAT)
            row |= {"grad_norm": 0.9, "lr": 3e-4, "tokens": step * TOKENS_A_STEP, "samples": step * 32}
            row |= {
                "step_time_s": seconds,
                "tokens_per_s": TOKENS_A_STEP / seconds,
                "mfu": 0.24 * story.step_s / seconds,
            }
            row |= {"memory_gib": 1.21, "goodput": 0.93, "nonfinite": 0, "skipped": 0}
            if story.usd:
                row["cost_usd"] = now_s * story.ranks * 3.0 / 3600
            writer.write(row)
            if step % 20 == 0:
                held = loss_at(step, story, random.Random(step)) + 0.12
                bits = held * BITS_PER_NAT
                writer.write(
                    _row(
                        "eval",
                        step,
                        attempt,
                        now_s,
                        set="eval",
                        loss=held,
                        bits_per_byte=bits,
                        tokens=262_144,
                    )
                    | {"perplexity": math.exp(held)}
                )
            if step % 100 == 0:
                writer.write(
                    _row("event", step, attempt, now_s, event="checkpoint", detail=f"step-{step:08d}")
                )
    writer.close()


def _row(kind: str, step: int, attempt: int, time_s: float, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "step": step, "attempt": attempt, "time_s": round(time_s, 3), **more}


def _run_steps(ledgers: list[Ledger], clocks: list[FakeClock], story: Story, first: int, final: int) -> None:
    noise = random.Random(1)
    for step in range(first, final + 1):
        arrivals = []
        for rank, (ledger, clock) in enumerate(zip(ledgers, clocks, strict=True)):
            if step == first:
                ledger.started()
            slow = 1.35 if rank == story.slow_rank else 1.0
            for phase, reason, share in (
                ("idle", "data", 0.010),
                ("compute", "forward", 0.30),
                ("compute", "backward", 0.60),
            ):
                with ledger.span(phase, reason):
                    clock.now_s += story.step_s * share * slow * (1 + abs(noise.gauss(0, 0.02)))
            arrivals.append(clock.now_s)
        for rank, (ledger, clock) in enumerate(zip(ledgers, clocks, strict=True)):
            if len(ledgers) > 1:
                begin = clock.now_s
                with ledger.span("deliver", "fsdp/reduce_scatter"):
                    clock.now_s = max(arrivals) + story.step_s * 0.06
                row = CallRow(
                    "fsdp", "fsdp:0", "reduce_scatter", step, 21_000_000, arrivals[rank], clock.now_s
                )
                ledger.call(row._replace(wait_start_s=begin, wait_end_s=clock.now_s))
            with ledger.span("update", "optimizer"):
                clock.now_s += story.step_s * 0.045
            clock.now_s += story.step_s * 0.002
            ledger.close_step(step)
            if step % 20 == 0:
                with ledger.span("compute", "evaluate"):
                    clock.now_s += story.step_s * 0.8
                ledger.close_step(None)
            if step % 100 == 0:
                with ledger.span("recover", "checkpoint"):
                    clock.now_s += story.step_s * 1.9
                ledger.close_step(None)


def _write_status(folder: RunFolder, story: Story, last: int, attempt: int) -> None:
    if story.died_at is None:
        status = Status("done", last, story.steps, attempt, "train", story.runs_as, exit_code=0)
        status.write(folder.status)
        return
    Status("running", last, story.steps, attempt, "train", story.runs_as, pid=2**22 + 1).write(folder.status)
    found = Status.read(folder.status)
    assert found is not None
    old = {**found.__dict__, "updated_s": found.updated_s - 3600}
    write_json(folder.status, {"schema": 1, **old})


def plan_dict(story: Story = Story()) -> dict[str, Any]:
    """What ``Plan.to_dict`` gives, for this run."""

    def candidate(layout: str, seconds: float, verdict: str, devices: int = 1) -> dict[str, Any]:
        return {
            "layout": layout,
            "full": layout,
            "scope": "device" if devices == 1 else "host",
            "devices": devices,
            "step_s": [seconds * 0.9, seconds, seconds * 1.13],
            "tokens_per_s": TOKENS_A_STEP / seconds,
            "mfu": 0.24 * story.step_s / seconds,
            "memory_gib": [0.92, 1.08, 1.3],
            "p_oom": 0.001,
            "usd": 0.42 if story.usd else None,
            "hours": [0.02, 0.022, 0.025],
            "terms": {"compute": 0.91 * seconds, "deliver": 0.0, "update": 0.05 * seconds, "host": 0.01},
            "verdict": verdict,
            "kind_of_evidence": "calculated",
        }

    best = candidate(f"{story.runs_as},mbs=16", story.step_s * 1.02, "chosen", story.ranks)
    rejected = [
        {
            "layout": "dp=2",
            "kind": "slower",
            "value": 0.55,
            "limit": 0.41,
            "unit": "s",
            "nearest": "wins with 4 cores",
        },
        {
            "layout": "single,mbs=64",
            "kind": "memory",
            "value": 9.4,
            "limit": 7.6,
            "unit": "GiB",
            "nearest": "mbs=32",
        },
        {"layout": "fsdp=3", "kind": "rule", "value": 3, "limit": 2, "unit": "devices", "nearest": "fsdp=2"},
    ] + [
        {
            "layout": f"single,mbs={m}",
            "kind": "memory",
            "value": m / 7,
            "limit": 7.6,
            "unit": "GiB",
            "nearest": "mbs=32",
        }
        for m in range(65, 90)
    ]
    return {
        "job": story.name,
        "model": {
            "name": "tiny",
            "parameters": 5_300_000,
            "flops_per_token": 2.6e7,
            "flops_convention": "6N without embedding + causal attention",
        },
        "cluster": "this machine: 2 cores",
        "objective": "time",
        "precision": "fp32",
        "steps": story.steps,
        "tokens_per_step": TOKENS_A_STEP,
        "best": best,
        "candidates": [
            best,
            candidate("dp=2,mbs=16", story.step_s * 1.31, "slower", 2),
            candidate("fsdp=2,mbs=16", story.step_s * 1.38, "slower", 2),
        ],
        "rejected": rejected,
        "scopes": {"device": best},
        "distribute": story.ranks > 1,
        "reason": "fsdp=2 is 1.3× slower here: both cores share one memory bus",
        "shortcut": "dp=2: 0.53 s a step, 1.3× slower than one process",
        "crossovers": ["4 cores → dp=2", "global_batch_size > 256 → dp=2"],
        "assumed": ["documents of equal length", "matmul rate of two processes: measured"],
        "disk": {"checkpoints": 189_000_000, "free": 20_000_000_000},
        "what_if": [],
        "measured_at": "2026-11-30T12:00:00Z",
    }


def main(root: Path) -> None:
    """Four runs of different fates."""
    write_run(root, Story())
    write_run(root, Story(name="four-ranks", ranks=4, step_s=0.13, slow_rank=2, resumed_at=120, usd=True))
    write_run(root, Story(name="died", died_at=57))
    bare = create(root, "bare")
    Status("preparing").write(bare.status)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

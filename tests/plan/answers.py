"""Jobs, machines and a measurement for the planner's tests."""

from __future__ import annotations

from typing import Any

from paceline.job import Job
from paceline.plan.answer import Plan
from paceline.plan.cluster import Cluster, parse_cluster, this_cpu
from paceline.plan.measured import Measured
from paceline.plan.search import plan

TINY = {"model.preset": "tiny", "train.steps": 200, "data.tokenizer": "bpe:8192", "data.sequence_length": 256}
LLAMA = {
    "model.preset": "llama-3.1-8b",
    "train.steps": 3000,
    "data.sequence_length": 2048,
    "train.global_batch_size": 256,
    "data.tokenizer": "bpe:8192",
}


def job(base: dict[str, Any] = TINY, **changes: Any) -> Job:
    """A job with dotted keys set; ``a__b`` stands for ``a.b``."""
    dotted = dict(base) | {key.replace("__", "."): value for key, value in changes.items()}
    tables: dict[str, dict[str, Any]] = {}
    for key, value in dotted.items():
        table, _, name = key.partition(".")
        tables.setdefault(table, {})[name] = value
    return Job(**tables)


def machine(cores: int = 2, gib: float = 16) -> Cluster:
    return this_cpu(cores, int(gib * 2**30), "test cpu")


def measurement(
    link: float = 1e9, alone: float = 80e9, shared: float = 40e9, start: float = 1e-4
) -> Measured:
    """A two-core machine: matmul rates of one rank on both cores and of two ranks on one each, a loopback."""
    under = [{"threads": 2, "processes": 1}, {"threads": 1, "processes": 2}]
    rates = (alone, shared)
    return Measured(
        key="test",
        at="2026-11-30T00:00:00Z",
        matmul=[
            u | {"precision": "fp32", "size": 512, "flops_per_s": r}
            for u, r in zip(under, rates, strict=True)
        ],
        stream=[u | {"bytes_per_s": 10e9} for u in under],
        optimizer=[u | {"parameters_per_s": 3e8} for u in under],
        collectives=[
            under[1] | {"op": op, "ranks": 2, "bytes": size, "seconds": start + size / link}
            for op in ("all_reduce", "all_gather", "reduce_scatter")
            for size in (1 << 16, 1 << 24)
        ],
        dispatch_s=3e-4,
        process_bytes=300 << 20,
    )


def ask(job_: Job | None = None, cluster: Cluster | str | None = None, **arguments: Any) -> Plan:
    """A plan, by default of the tiny job on the measured two-core machine."""
    if isinstance(cluster, str):
        cluster = parse_cluster(cluster)
    arguments.setdefault("measured", measurement() if cluster is None else None)
    return plan(job_ or job(), cluster=cluster or machine(), **arguments)

"""The numbers that a plan rests on and that a factor can change: each with its value, and the question with another.

A changed number goes in where it came from (data sheet, cluster, measurement), so that every price follows from it.
What was measured under several conditions is changed in all of them; a measured block moves with the matmul rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline.plan.cluster import Cluster
from paceline.plan.digits import GIB, three
from paceline.plan.measured import Measured
from paceline.plan.speed.cpu import CpuSpeeds
from paceline.plan.speed.gpu import UNKNOWN_LINK, UNKNOWN_NIC, GpuSpeeds
from paceline.plan.weigh import Question

Change = Callable[[Question, float], Question]


@dataclass(frozen=True)
class Assumption:
    """``value`` is in ``unit``; ``changed(question, factor)`` is the question where it is that many times as large."""

    name: str
    value: float
    unit: str
    changed: Change

    def text(self, factor: float = 1.0) -> str:
        return f"{three(self.value * factor)} {self.unit}"


def assumptions(question: Question) -> list[Assumption]:
    """Those that the prices of this question depend on."""
    if isinstance(question.speeds, CpuSpeeds):
        return _of_cpu(question, question.speeds)
    return _of_devices(question)


def _of_devices(question: Question) -> list[Assumption]:
    cluster, sheet = question.cluster, question.cluster.accelerator
    found = [
        Assumption("matmul", _peak(question) / 1e12, "TFLOP/s", _matmul),
        Assumption("memory bandwidth", sheet.memory_bytes_per_s / 1e9, "GB/s", _bandwidth),
        Assumption("memory", cluster.memory_bytes / GIB, "GiB", _memory),
    ]
    if cluster.devices > 1:
        rate = cluster.link_bytes_per_s or UNKNOWN_LINK
        found.append(Assumption("link.intra", rate / 1e9, "GB/s", _intra))
    if cluster.hosts > 1:
        found.append(Assumption("link.inter", _nic(cluster) * 8 / 1e9, "Gbit/s", _inter))
        found.append(Assumption("latency.inter", cluster.latency_inter_s * 1e6, "µs", _latency))
    return [one for one in found if one.value > 0]


def _of_cpu(question: Question, speeds: CpuSpeeds) -> list[Assumption]:
    cluster, sheet, measured = question.cluster, question.cluster.accelerator, speeds.measured
    rate = _largest(measured.matmul if measured else (), "flops_per_s") or sheet.matmul_flops["fp32"]
    stream = _largest(measured.stream if measured else (), "bytes_per_s") or sheet.memory_bytes_per_s
    found = [
        Assumption("matmul", rate / 1e9, "GFLOP/s", _matmul),
        Assumption("memory bandwidth", stream / 1e9, "GB/s", _bandwidth),
        Assumption("memory", cluster.memory_bytes / GIB, "GiB", _memory),
    ]
    if cluster.devices > 1:
        found.append(Assumption("link.intra", _loopback(cluster, measured) / 1e9, "GB/s", _intra))
    together = [row for row in measured.matmul if row["processes"] > 1] if measured else []
    if together:
        rate = _largest(together, "flops_per_s")
        found.append(Assumption("each of several ranks", rate / 1e9, "GFLOP/s", _together))
    return found


def _largest(rows: Iterable[Mapping[str, Any]], name: str) -> float:
    return max((float(row[name]) for row in rows), default=0.0)


def _nic(cluster: Cluster) -> float:
    return cluster.nic_bytes_per_s or UNKNOWN_NIC


def _peak(question: Question) -> float:
    return question.speeds.peak_flops(1)


def _loopback(cluster: Cluster, measured: Measured | None) -> float:
    """Bytes a second of the largest collective that was measured."""
    rows = measured.collectives if measured else ()
    return max((row["bytes"] / row["seconds"] for row in rows), default=cluster.accelerator.link_bytes_per_s)


def _with(question: Question, cluster: Cluster, **rates: float) -> Question:
    """The question on a changed cluster, with measured rates changed by factors."""
    old = question.speeds
    if isinstance(old, CpuSpeeds):
        measured = old.measured and _scaled(old.measured, **rates)
        return replace(question, cluster=cluster, speeds=CpuSpeeds(cluster, measured, old.precision))
    assert isinstance(old, GpuSpeeds)
    speeds = GpuSpeeds(cluster, old.precision, old.rates, old.software)
    return replace(question, cluster=cluster, speeds=speeds)


def _scaled(
    measured: Measured, matmul: float = 1.0, memory: float = 1.0, link: float = 1.0, together: float = 1.0
) -> Measured:
    """Rates times their factors, and seconds over them; ``together``: of ranks that ran at once."""

    def of(row: Mapping[str, Any], factor: float, rate: str = "", seconds: tuple[str, ...] = ()) -> Any:
        factor *= together if row.get("processes", 1) > 1 and not row.get("op") else 1.0
        changed = {rate: row[rate] * factor} if rate else {}
        return {**row, **changed, **{name: row[name] / factor for name in seconds if row.get(name)}}

    return replace(
        measured,
        matmul=[of(row, matmul, "flops_per_s") for row in measured.matmul],
        stream=[of(row, memory, "bytes_per_s") for row in measured.stream],
        optimizer=[of(row, memory, "parameters_per_s") for row in measured.optimizer],
        blocks=[of(row, matmul, seconds=("layer_s", "outer_s")) for row in measured.blocks],
        collectives=[of(row, link, seconds=("seconds",)) for row in measured.collectives],
    )


def _matmul(question: Question, factor: float) -> Question:
    sheet = question.cluster.accelerator
    faster = replace(
        sheet,
        peak_flops={name: rate * factor for name, rate in sheet.peak_flops.items()},
        matmul_flops={name: rate * factor for name, rate in sheet.matmul_flops.items()},
    )
    return _with(question, replace(question.cluster, accelerator=faster), matmul=factor)


def _bandwidth(question: Question, factor: float) -> Question:
    sheet = question.cluster.accelerator
    faster = replace(sheet, memory_bytes_per_s=sheet.memory_bytes_per_s * factor)
    return _with(question, replace(question.cluster, accelerator=faster), memory=factor)


def _memory(question: Question, factor: float) -> Question:
    cluster = question.cluster
    return _with(question, replace(cluster, memory_bytes=round(cluster.memory_bytes * factor)))


def _intra(question: Question, factor: float) -> Question:
    cluster, sheet = question.cluster, question.cluster.accelerator
    rate = (cluster.link_bytes_per_s or UNKNOWN_LINK) * factor
    faster = replace(sheet, link_bytes_per_s=sheet.link_bytes_per_s * factor)
    return _with(question, replace(cluster, link_bytes_per_s=rate, accelerator=faster), link=factor)


def _inter(question: Question, factor: float) -> Question:
    cluster = question.cluster
    return _with(question, replace(cluster, nic_bytes_per_s=_nic(cluster) * factor))


def _latency(question: Question, factor: float) -> Question:
    cluster = question.cluster
    return _with(question, replace(cluster, latency_inter_s=cluster.latency_inter_s * factor))


def _together(question: Question, factor: float) -> Question:
    return _with(question, question.cluster, together=factor)

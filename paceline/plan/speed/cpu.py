"""A CPU host: the ranks share its cores and its memory bus.

A closed form (matrix products at the measured matmul rate, everything else at the memory's) is corrected
by blocks of a real decoder that were timed on this machine under the same threads and simultaneous
processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from paceline.plan.activations import layer_activation_bytes
from paceline.plan.chance import NINETY
from paceline.plan.cluster import Cluster
from paceline.plan.measured import Measured, nearest
from paceline.plan.model import WIDE_BYTES, Widths, expert_features, features, layer_flops, outer_flops
from paceline.plan.speed.speeds import Factors, Group

ATTENTION_RATE = 0.4  # of the matmul rate, before the correction by measured blocks
PASSES = 3.0  # reads and writes of a kept activation, forward and backward, before the correction
LOSS_PASSES = 8.0  # of the logits in the wide type: log-softmax and its backward
CLIP_BYTES = 12.0  # a parameter: the norm reads its gradient, clipping reads and writes it
OVERSUBSCRIBED = 1.1  # what switching costs when there are more ranks than cores
LOOPBACK_S = 150e-6
DISPATCH_S = 300e-6
OPERATORS_PER_EXPERT = 6.0  # a block has about six times the operators of one expert's loop
PROCESS_BYTES = 350 << 20
TINY = {"catalogue": 0.55, "measured": 0.06}

# Steps of five models came out 1.0 to 1.6 times the prediction (docs/log, 2026-11): the interval says so.
MEASURED_SIGMA = {"compute": 0.2, "deliver": 0.25, "update": 0.15, "host": 0.5, "idle": 0.3, "own": 0.05}
CATALOGUE_SIGMA = {"compute": 0.55, "deliver": 0.8, "update": 0.6, "host": 0.7, "idle": 0.3, "own": 0.25}


def busy_sigma(cores: int) -> Mapping[str, float]:
    """So wide that the most that ``cores`` ranks can gain over one device lies inside a layout's own interval.

    What else ran while one rank was timed need not have run while two were: the ratio of two figures says nothing,
    and the simplest layout stands until a quiet machine says otherwise.
    """
    return {**CATALOGUE_SIGMA, "own": max(CATALOGUE_SIGMA["own"], math.log(max(2, cores)) / NINETY)}


class CpuSpeeds:
    """Speeds of the ranks of one CPU host; ``cores // ranks`` threads each."""

    factors = Factors()
    pods = False
    overlaps = False  # gloo's threads take the cores that compute

    def __init__(self, cluster: Cluster, measured: Measured | None, precision: str) -> None:
        self.cores = cluster.devices
        self.precision = precision
        self.sheet = cluster.accelerator
        self.measured = measured
        self.base_bytes = (measured.process_bytes if measured else 0) or PROCESS_BYTES
        self.busy = measured is not None and measured.busy
        self.sigma: Mapping[str, float] = MEASURED_SIGMA if measured else CATALOGUE_SIGMA
        assumed = []
        if measured is None:
            assumed.append(
                "speed of this CPU from the catalogue, not measured: `paceline train` measures it once"
            )
            if cluster.memory_bytes == self.sheet.memory_bytes * cluster.devices:
                assumed.append(f"{self.sheet.memory_bytes / 2**30:.2g} GiB of memory a core (cluster.memory)")
        elif measured.matmul_flops(precision, 512, 1, 1) is None:
            assumed.append(f"{precision} was not measured here: taken from the catalogue")
            self.sigma = CATALOGUE_SIGMA
        if measured is not None and measured.busy:
            self.sigma = busy_sigma(self.cores)
            assumed.append(
                f"this machine was busy when it was measured (got {measured.cpu_share:.0%} of its cores): wide "
                "interval, no MFU; the next `paceline train` on a quiet machine measures again"
            )
        elif measured is not None and not measured.collectives:
            assumed.append("collectives of this host were not measured: loopback from the catalogue")
        if cluster.hosts > 1:
            assumed.append(
                "processors of several hosts are priced as those of one: no message waits for a network"
            )
        self.assumed = tuple(assumed)
        self._factors: dict[tuple[Any, ...], tuple[float, float]] = {}

    def threads(self, world: int) -> int:
        """Threads of one rank when ``world`` ranks share the cores."""
        return max(1, self.cores // world)

    def peak_flops(self, world: int) -> float:
        """0 where it is not known: a peak that was taken on a busy machine would give an MFU above 1."""
        if self.busy:
            return 0.0
        threads, at_once, slower = self._sharing(world)
        return self._matmul(1024, threads, at_once) / slower

    def block_s(self, kind: Widths, sequence_length: int, mbs: float, world: int, tp: int = 1) -> float:
        threads, at_once, slower = self._sharing(world)
        plain = self._block(kind, sequence_length, mbs, threads, at_once, tp)
        factor, _ = self._factor("layer_s", kind, sequence_length, mbs, threads, at_once)
        least_s = self._least_s(world, lambda: self.block_s(kind, sequence_length, mbs, 1, tp))
        return max(slower * plain * factor, least_s)

    def outer_s(self, widths: Widths, sequence_length: int, mbs: float, world: int) -> float:
        threads, at_once, slower = self._sharing(world)
        plain = self._outer(widths, sequence_length, mbs, threads, at_once)
        factor, _ = self._factor("outer_s", widths, sequence_length, mbs, threads, at_once)
        least_s = self._least_s(world, lambda: self.outer_s(widths, sequence_length, mbs, 1))
        return max(slower * plain * factor, least_s)

    def distance(self, widths: Widths, sequence_length: int, mbs: float) -> float:
        """How far (natural logarithm) the nearest measured block is from this one; infinite when none is."""
        rows = [row for row in self._blocks() if row["precision"] == self.precision]
        return min((_far(row, widths, sequence_length, mbs) for row in rows), default=math.inf)

    def optimizer_s(self, parameters: float, world: int) -> float:
        threads, at_once, slower = self._sharing(world)
        rate = (
            self.measured.rate(self.measured.optimizer, "parameters_per_s", threads, at_once)
            if self.measured
            else None
        )
        wide = WIDE_BYTES[self.precision] / 4
        update = wide * parameters / rate if rate else 28 * wide * parameters / self._stream(threads, at_once)
        found = slower * (update + CLIP_BYTES * wide * parameters / self._stream(threads, at_once))
        return max(found, self._least_s(world, lambda: self.optimizer_s(parameters, 1)))

    def copy_s(self, size_bytes: float, world: int) -> float:
        threads, at_once, slower = self._sharing(world)
        found = slower * 2 * size_bytes / self._stream(threads, at_once)
        return max(found, self._least_s(world, lambda: self.copy_s(size_bytes, 1)))

    def collective_s(self, op: str, size_bytes: float, group: Group) -> float:
        n = group.ranks
        if n < 2 or size_bytes <= 0:
            return 0.0
        # Not measured: an all-to-all moves what an all-gather of as many bytes does, a send all of its bytes.
        alike = {"all_to_all": "all_gather", "send": "all_gather"}.get(op, op)
        size_bytes *= n / (n - 1) if op == "send" else 1
        found = self.measured.collective_s(alike, n, size_bytes) if self.measured else None
        if found is not None:
            return found
        passes = 2 if op == "all_reduce" else 1
        rate = self.sheet.link_bytes_per_s / max(1.0, n / self.cores)
        return LOOPBACK_S * (n - 1) + passes * (n - 1) / n * size_bytes / rate

    def _least_s(self, world: int, alone_s: Callable[[], float]) -> float:
        """Of a busy measurement: ``world`` ranks together are at most as many times faster as there are cores."""
        return alone_s() * world / self.cores if self.busy and world > 1 else 0.0

    def _sharing(self, world: int) -> tuple[int, int, float]:
        """(threads of a rank, ranks that run at once, slow-down of ranks that wait for a core)."""
        at_once = min(world, self.cores)
        slower = OVERSUBSCRIBED * world / self.cores if world > self.cores else 1.0
        return self.threads(world), at_once, slower

    def _matmul(self, size: float, threads: int, at_once: int) -> float:
        found = self.measured.matmul_flops(self.precision, size, threads, at_once) if self.measured else None
        if found:
            return found
        # Not measured: a CPU of unknown make multiplies bf16 by emulation.
        sheet = self.sheet.matmul_flops
        rate = sheet["fp64"] if self.precision == "fp64" else sheet["fp32"]
        return rate * threads * (0.02 if self.precision == "bf16" else 1.0)

    def _stream(self, threads: int, at_once: int) -> float:
        found = (
            self.measured.rate(self.measured.stream, "bytes_per_s", threads, at_once)
            if self.measured
            else None
        )
        return found or self.sheet.memory_bytes_per_s / at_once

    def _dispatch(self) -> float:
        return (self.measured.dispatch_s if self.measured else 0.0) or DISPATCH_S

    def _block(self, kind: Widths, length: int, mbs: float, threads: int, at_once: int, tp: int = 1) -> float:
        linear, core = layer_flops(kind, length)
        rate = self._matmul(math.sqrt(kind.hidden_size * features(kind)), threads, at_once)
        kept = layer_activation_bytes(kind, self.precision, length, tp)
        moved = PASSES * kept / self._stream(threads, at_once)
        matmul = linear / rate
        if kind.num_experts:  # each expert is a product of its own
            inner = self._matmul(math.sqrt(kind.hidden_size * kind.moe_intermediate_size), threads, at_once)
            matmul += 6 * expert_features(kind) * (1 / inner - 1 / rate)
        calls = self._dispatch() * (1 + kind.num_experts / OPERATORS_PER_EXPERT)
        return calls + mbs * length * (matmul + core / (ATTENTION_RATE * rate) + moved)

    def _outer(self, widths: Widths, length: int, mbs: float, threads: int, at_once: int) -> float:
        rate = self._matmul(math.sqrt(widths.hidden_size * widths.vocab_size), threads, at_once)
        loss = LOSS_PASSES * WIDE_BYTES[self.precision] * widths.vocab_size / self._stream(threads, at_once)
        return self._dispatch() / 2 + mbs * length * (outer_flops(widths) / rate + loss)

    def _blocks(self) -> list[Mapping[str, Any]]:
        return list(self.measured.blocks) if self.measured else []

    def _factor(
        self, part: str, widths: Widths, length: int, mbs: float, threads: int, at_once: int
    ) -> tuple[float, float]:
        """(measured over formula, distance of the nearest block): a mean, the near blocks weigh most."""
        key = (part, widths, length, mbs, threads, at_once)
        if key not in self._factors:
            rows = [r for r in self._blocks() if r["precision"] == self.precision and r.get(part)]
            formula = self._block if part == "layer_s" else self._outer
            weight, total, least = 0.0, 0.0, math.inf
            for row in nearest(rows, threads, at_once):
                shape = _shape(row)
                plain = formula(shape, row["sequence_length"], row["mbs"], row["threads"], row["processes"])
                far = _far(row, widths, length, mbs)
                least = min(least, far)
                pull = 1 / (far**2 + 1e-3)
                weight, total = weight + pull, total + pull * math.log(row[part] / plain)
            self._factors[key] = (math.exp(total / weight) if weight else 1.0, least)
        return self._factors[key]


def _shape(row: Mapping[str, Any]) -> Widths:
    """The widths of a measured block; before other families were measured all were gated and plain."""
    if "kind" in row:
        return Widths(**row["kind"])
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    sizes: dict[str, Any] = {name: int(row[name]) for name in (*names, "head_dim")}
    return Widths(num_hidden_layers=1, **sizes)


def _far(row: Mapping[str, Any], widths: Widths, length: int, mbs: float) -> float:
    """Distance in log-shape space; the micro-batch weighs little once it fills the cores."""
    pairs = (
        (row["hidden_size"], widths.hidden_size, 1.0),
        (row["intermediate_size"], features(widths), 1.0),
        (row["vocab_size"], widths.vocab_size, 0.5),
        (row["sequence_length"], length, 1.0),
        (row["mbs"] * row["sequence_length"], mbs * length, 0.3),
    )
    return math.sqrt(sum(w * math.log(a / b) ** 2 for a, b, w in pairs))

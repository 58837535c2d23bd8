"""GPUs by their data sheet: published matmul rates where there is one, links by latency and bandwidth.

Sources of the constants: the project's table of public measurements (matmul efficiency by the smallest
dimension, NCCL's own latency constants, multi-node all-gather latencies, contention of overlapped
communication). They are a
prior: with it, the interval is wide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from paceline.plan.activations import layer_activation_bytes
from paceline.plan.cluster import Cluster
from paceline.plan.measured import interpolate
from paceline.plan.model import (
    WIDE_BYTES,
    Widths,
    attention_matrices,
    expert_features,
    head_flops,
    layer_flops,
    value_width,
)
from paceline.plan.speed.speeds import Factors, Group

BY_SMALLEST_DIM = ((128, 0.35), (512, 0.75), (1024, 0.84), (2048, 0.90), (4096, 0.92))
UNMEASURED_MATMUL = 0.75  # of the dense peak, where nobody published a measurement
KERNELS_TO_TRAINING = (
    0.80  # isolated kernels run faster than the same ones inside a step (power, clocks, gaps)
)
FP32_OF_BF16 = 1 / 16  # without tensor cores; tf32 is not used for float32
GROUPED = 0.6  # of a plain product's rate: the experts' grouped one
ATTENTION_RATE = 0.45  # of the matmul rate, causal flash, forward and backward
PASSES = 3.0
LOSS_PASSES = 6.0
MEMORY_REACHED = 0.85
LAUNCH_S = 1.2e-3  # operators of one block, forward and backward, launched from Python
LINK_REACHED, NIC_REACHED = 0.75, 0.90
CONTEXT_BYTES = int(0.8 * 2**30)
CATALOGUE_SIGMA = {"compute": 0.18, "deliver": 0.35, "update": 0.25, "host": 0.5, "idle": 0.3, "own": 0.05}


class GpuSpeeds:
    """Speeds of one GPU a rank."""

    overlaps = True
    factors = Factors()

    def __init__(self, cluster: Cluster, precision: str) -> None:
        self.cluster = cluster
        self.sheet = cluster.accelerator
        self.precision = precision
        self.base_bytes = CONTEXT_BYTES
        self.sigma: Mapping[str, float] = CATALOGUE_SIGMA
        self.assumed: tuple[str, ...] = (
            f"{self.sheet.name} from the catalogue, not measured: the interval is wide",
        )
        self._rate = self.sheet.matmul_flops.get(precision) or UNMEASURED_MATMUL * self.peak_flops(1)

    def peak_flops(self, world: int) -> float:
        peaks = self.sheet.peak_flops
        half = peaks.get("bf16") or peaks.get("fp16") or 0.0
        if self.precision == "bf16":
            return half
        return half * FP32_OF_BF16 / (2 if self.precision == "fp64" else 1)

    def block_s(self, kind: Widths, sequence_length: int, mbs: float, world: int, tp: int = 1) -> float:
        tokens = mbs * sequence_length
        linear, core = layer_flops(kind, sequence_length)
        attention, routed = 6 * attention_matrices(kind), 6 * expert_features(kind)
        seconds = core / (ATTENTION_RATE * self._rate)
        seconds += attention / self._reached(min(kind.hidden_size, tokens, value_width(kind)))
        if kind.intermediate_size:
            least = min(kind.hidden_size, tokens, kind.intermediate_size)
            seconds += (linear - attention - routed) / self._reached(least)
        if routed:
            each = tokens * kind.num_experts_per_tok / kind.num_experts
            least = min(kind.hidden_size, kind.moe_intermediate_size, max(1.0, each))
            seconds += routed / (GROUPED * self._reached(least))
        seconds += PASSES * layer_activation_bytes(kind, self.precision, sequence_length, tp) / self._memory()
        return max(LAUNCH_S, tokens * seconds)

    def outer_s(self, widths: Widths, sequence_length: int, mbs: float, world: int) -> float:
        tokens = mbs * sequence_length
        rate = self._reached(min(widths.hidden_size, tokens))
        loss = LOSS_PASSES * WIDE_BYTES[self.precision] * widths.vocab_size / self._memory()
        return max(LAUNCH_S / 2, tokens * (head_flops(widths) / rate + loss))

    def _reached(self, least: float) -> float:
        """The rate of a matrix product inside a step, by its smallest dimension."""
        return self._rate * KERNELS_TO_TRAINING * interpolate(BY_SMALLEST_DIM, least)

    def optimizer_s(self, parameters: float, world: int) -> float:
        return 40 * WIDE_BYTES[self.precision] / 4 * parameters / self._memory() + 1e-3

    def copy_s(self, size_bytes: float, world: int) -> float:
        return 2 * size_bytes / self._memory()

    def collective_s(self, op: str, size_bytes: float, group: Group) -> float:
        n = group.ranks
        if n < 2 or size_bytes <= 0:
            return 0.0
        passes = 2 if op == "all_reduce" else 1
        size_bytes *= n / (n - 1) if op == "send" else 1
        rate = self.cluster.link_bytes_per_s * LINK_REACHED or 1e9
        latency = 15e-6 + 2e-6 * (n - 1)
        if group.hosts > 1:
            nic = (self.cluster.nic_bytes_per_s or 1.25e9) * NIC_REACHED * group.on_host
            rate = min(rate, nic) if group.on_host > 1 else nic
            latency = 15e-6 + (self.cluster.latency_inter_s + 10e-6) * group.hosts
        return passes * latency + passes * (n - 1) / n * size_bytes / rate

    def distance(self, widths: Widths, sequence_length: int, mbs: float) -> float:
        """No block of a GPU is measured here."""
        return math.inf

    def _memory(self) -> float:
        return (self.sheet.memory_bytes_per_s or 1e12) * MEMORY_REACHED

"""GPUs by their data sheet: published matmul rates where there is one, links by latency and bandwidth.

Sources of the constants: the project's table of public measurements (matmul efficiency by the smallest
dimension, NCCL's own latency constants, multi-node all-gather latencies, contention of overlapped
communication). They are a prior; what real runs take over them is in :class:`Rates`.
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
    layer_flops,
    outer_flops,
    value_width,
)
from paceline.plan.speed.rates import AS_PUBLISHED, NAMES, Rates, Software
from paceline.plan.speed.speeds import Group

BY_SMALLEST_DIM = ((128, 0.35), (512, 0.75), (1024, 0.84), (2048, 0.90), (4096, 0.92))
WIDE, MANY_TOKENS = 4096, 8192
"""Where a smaller dimension, and fewer tokens, begin to cost (``Rates.narrow``, ``Rates.few_tokens``)."""
UNMEASURED_MATMUL = 0.78  # of the dense peak, where nobody published a measurement
KERNELS_TO_TRAINING = (
    0.80  # isolated kernels run faster than the same ones inside a step (power, clocks, gaps)
)
FP32_OF_BF16 = 1 / 16  # without tensor cores; tf32 is not used for float32
LOW = ("fp8", "mxfp8", "nvfp4", "int8")
"""Types of dense products only: attention, head and everything element-wise stay in 16 bits."""
PEAK_OF = {"mxfp8": "fp8", "nvfp4": "fp4"}
LOW_MATMUL = 0.92  # of the 16-bit share of the peak, where nobody published one
LOW_PASSES = 1.3  # casting to and scaling of the low type, over the passes without
GROUPED = 0.6  # of a plain product's rate: the experts' grouped one
ATTENTION_RATE = 0.45  # of the matmul rate, causal flash, forward and backward
UNFUSED_RATE = 0.6  # of batched products of whole score matrices
UNFUSED_PASSES = 12.0  # over the scores, in 16 bits: mask, softmax, dropout, forward and backward
ALIGNED = (
    8  # elements of a 16-bit head: NVIDIA's rule for tensor cores (Matrix Multiplication Background, ch. 4)
)
UNALIGNED = 4.0  # attention's products of other widths
PASSES = 3.0
LOSS_PASSES = 6.0
MEMORY_REACHED = 0.85
LAUNCH_S = 1.2e-3  # operators of one block, forward and backward, launched from Python
FLOOR_POWER = 4.0  # how sharply the launch floor and the work itself take turns
LINK_REACHED, NIC_REACHED = 0.75, 0.90
UNKNOWN_LINK, UNKNOWN_NIC = (
    1e9,
    1.25e9,
)  # bytes/s where neither data sheet nor job says what joins the devices
FEW_HOSTS = 8  # among so many latency grows with each; beyond them with the square root
CONTEXT_BYTES = int(0.8 * 2**30)
CATALOGUE_SIGMA = {"compute": 0.18, "deliver": 0.35, "update": 0.25, "host": 0.5, "idle": 0.3, "own": 0.05}


class GpuSpeeds:
    """Speeds of one GPU a rank."""

    overlaps = True

    def __init__(
        self,
        cluster: Cluster,
        precision: str,
        rates: Rates = AS_PUBLISHED,
        software: Software | None = None,
    ) -> None:
        self.cluster = cluster
        self.pods = cluster.fabric is not None
        self.sheet = cluster.accelerator
        self.precision = precision
        self.rates = rates
        self.factors = rates.factors
        self._times = {name: rates.times(name) for name in NAMES}
        self._blocks: dict[tuple[Widths, int, float, int], float] = {}
        self.software = software or Software()
        self.base_bytes = CONTEXT_BYTES
        self.sigma: Mapping[str, float] = CATALOGUE_SIGMA
        self.assumed: tuple[str, ...] = (
            f"{self.sheet.name} from the catalogue, not measured: the interval is wide",
        )
        self._products = self.software.products or precision
        self._rate = self._matmul_rate(precision)
        self._product_rate = self._matmul_rate(self._products)
        self._memory = (self.sheet.memory_bytes_per_s or 1e12) * MEMORY_REACHED / rates.times("memory")

    def peak_flops(self, world: int) -> float:
        return self._peak(self._products)

    def _peak(self, precision: str) -> float:
        peaks = self.sheet.peak_flops
        half = peaks.get("bf16") or peaks.get("fp16") or 0.0
        if precision in ("bf16", "fp16"):
            return peaks.get(precision) or half
        if precision in LOW:
            return peaks.get(PEAK_OF.get(precision, precision)) or peaks.get("fp8") or half
        if precision == "tf32":
            return peaks.get("tf32") or half / 2
        return half * FP32_OF_BF16 / (2 if precision == "fp64" else 1)

    def _matmul_rate(self, precision: str) -> float:
        """Of large products: as published, or a share of the peak."""
        measured, peaks = self.sheet.matmul_flops, self.sheet.peak_flops
        peak = self._peak(precision)
        share = measured["bf16"] / peaks["bf16"] if "bf16" in measured else UNMEASURED_MATMUL
        if precision in LOW:
            known = "fp8" in measured and "fp8" in peaks
            return peak * (measured["fp8"] / peaks["fp8"] if known else LOW_MATMUL * share)
        return peak * share

    def block_s(self, kind: Widths, sequence_length: int, mbs: float, world: int, tp: int = 1) -> float:
        asked = (kind, sequence_length, mbs, tp)
        found = self._blocks.get(asked)
        if found is None:
            found = self._blocks[asked] = self._block_s(*asked)
        return found

    def _block_s(self, kind: Widths, sequence_length: int, mbs: float, tp: int) -> float:
        tokens = mbs * sequence_length
        seconds = self._products_s(kind, tokens) + self._attention_s(kind, sequence_length, tokens)
        seconds += self._elements_s(kind, sequence_length, tokens, tp)
        return _floor(LAUNCH_S * self._times["launch"], seconds)

    def _products_s(self, kind: Widths, tokens: float) -> float:
        linear, _ = layer_flops(kind, 1)
        attention, routed = 6 * attention_matrices(kind), 6 * expert_features(kind)
        each = attention / self._reached(min(kind.hidden_size, tokens, value_width(kind)))
        if kind.intermediate_size:
            least = min(kind.hidden_size, tokens, kind.intermediate_size)
            each += (linear - attention - routed) / self._reached(least)
        if routed:
            per_expert = tokens * kind.num_experts_per_tok / kind.num_experts
            least = min(kind.hidden_size, kind.moe_intermediate_size, max(1.0, per_expert))
            each += routed / self._reached(least) / GROUPED * self._times["grouped"]
        fewer = math.log(MANY_TOKENS / max(256, min(tokens, 2 * MANY_TOKENS)))
        return tokens * each * math.exp(self.rates.few_tokens * fewer)

    def _attention_s(self, kind: Widths, sequence_length: int, tokens: float) -> float:
        """The core: scores and their product with the values."""
        _, core = layer_flops(kind, sequence_length)
        slower = self._times["attention"]
        if kind.head_dim % ALIGNED:
            slower *= UNALIGNED
        if self.software.fused:
            flops = core if self.software.causal else 2 * core
            return tokens * flops * slower / (ATTENTION_RATE * self._rate)
        moved = 2 * UNFUSED_PASSES * kind.num_attention_heads * sequence_length
        seconds = 2 * core * slower / (UNFUSED_RATE * self._rate)
        return tokens * (seconds + moved / self._memory * self._times["unfused"])

    def _elements_s(self, kind: Widths, sequence_length: int, tokens: float, tp: int) -> float:
        """What only moves activations, and what low types add to it."""
        kept = layer_activation_bytes(kind, self.precision, sequence_length, tp)
        if kind.num_experts:
            # Six hidden-wide copies (dispatch, combine and their wide sums) and the gated product of each choice.
            a_choice = 6 * kind.hidden_size + 8 * kind.moe_intermediate_size
            routed = min(kept, kind.num_experts_per_tok * a_choice / tp)
            kept += routed * (self._times["routing"] - 1)
        passes = PASSES * (LOW_PASSES if self._products in LOW else 1)
        return tokens * passes * kept / self._memory

    def outer_s(self, widths: Widths, sequence_length: int, mbs: float, world: int) -> float:
        tokens = mbs * sequence_length
        least = min(widths.hidden_size, tokens)
        rate = self._reached(least, self._rate)
        loss = LOSS_PASSES * WIDE_BYTES[self.precision] * widths.vocab_size / self._memory
        seconds = tokens * (outer_flops(widths) / rate + loss) * self._times["loss"]
        return _floor(LAUNCH_S / 2 * self._times["launch"], seconds)

    def _reached(self, least: float, rate: float | None = None) -> float:
        """The rate of a matrix product inside a step, by its smallest dimension."""
        rate = (rate or self._product_rate) * KERNELS_TO_TRAINING * interpolate(BY_SMALLEST_DIM, least)
        narrower = math.log(WIDE / max(64, min(least, 2 * WIDE)))
        return rate / self._times["matmul"] / math.exp(self.rates.narrow * narrower)

    def optimizer_s(self, parameters: float, world: int) -> float:
        seconds = 40 * WIDE_BYTES[self.precision] / 4 * parameters / self._memory + 1e-3
        return seconds * self._times["optimizer"]

    def copy_s(self, size_bytes: float, world: int) -> float:
        return 2 * size_bytes / self._memory

    def collective_s(self, op: str, size_bytes: float, group: Group) -> float:
        n = group.ranks
        if n < 2 or size_bytes <= 0:
            return 0.0
        passes = 2 if op == "all_reduce" else 1
        size_bytes *= n / (n - 1) if op == "send" else 1
        rate = (self.cluster.link_bytes_per_s * LINK_REACHED or UNKNOWN_LINK) / self._times["link"]
        latency = 15e-6 + 2e-6 * (n - 1)
        if group.hosts > 1:
            nic = (self.cluster.nic_bytes_per_s or UNKNOWN_NIC) * NIC_REACHED * group.on_host
            nic /= self._times["nic"]
            if self.cluster.fabric is not None:
                nic *= self.cluster.fabric.share(op, n, group.apart, self.cluster.devices)
            rate = min(rate, nic) if group.on_host > 1 else nic
            hosts = min(group.hosts, FEW_HOSTS + math.sqrt(group.hosts))
            latency = 15e-6 + (self.cluster.latency_inter_s + 10e-6) * hosts
        seconds = passes * (n - 1) / n * size_bytes / rate
        return passes * latency * self._times["latency"] + seconds

    def distance(self, widths: Widths, sequence_length: int, mbs: float) -> float:
        """No block of a GPU is measured here."""
        return math.inf


def _floor(least: float, seconds: float) -> float:
    """The larger of the two, and more than it where they are near each other."""
    most = max(least, seconds)
    return most * ((least / most) ** FLOOR_POWER + (seconds / most) ** FLOOR_POWER) ** (1 / FLOOR_POWER)

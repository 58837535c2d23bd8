"""The one place that knows cpu from cuda.

Everything above asks this value; ``torch.accelerator`` is of no use for that, since it raises on a machine
without one. Memory on a CPU is the process's resident set; on CUDA the allocator's own peaks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.resident import peak_bytes

GIB = float(1 << 30)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


@dataclass(frozen=True)
class Device:
    """A rank's device: ``kind`` is cpu or cuda, ``backend`` the collective library that serves it."""

    kind: str
    index: int
    backend: str

    @property
    def torch(self) -> torch.device:
        """The torch device, with its index on CUDA."""
        return torch.device(self.kind) if self.kind == "cpu" else torch.device(self.kind, self.index)

    def synchronize(self) -> None:
        """Wait for the work queued on the device; nothing to wait for on a CPU."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.index)

    def reset_peak(self) -> None:
        """Start a new peak measurement (CUDA; the kernel keeps a process's peak for its whole life)."""
        if self.kind == "cuda":
            torch.cuda.reset_peak_memory_stats(self.index)

    def memory_gib(self) -> tuple[float, float]:
        """(peak reserved, peak allocated) in GiB; on a CPU both are the process's peak resident set."""
        if self.kind == "cuda":
            reserved = torch.cuda.max_memory_reserved(self.index)
            return reserved / GIB, torch.cuda.max_memory_allocated(self.index) / GIB
        peak = peak_bytes() / GIB
        return peak, peak

    def from_host(self, array: Tensor) -> Tensor:
        """A host tensor on the device; asynchronous from pinned memory on CUDA, the same tensor on a CPU."""
        if self.kind == "cuda":
            return array.pin_memory().to(self.torch, non_blocking=True)
        return array


def open_device(wanted: str, local_rank: int, *, threads: int, deterministic: bool) -> Device:
    """Choose and prepare the device of a rank.

    Args:
        wanted: ``auto``, ``cpu`` or ``cuda`` (``run.device``).
        local_rank: index of the rank on its host, and of its CUDA device.
        threads: CPU threads of this rank's operators; ranks share the cores, so it is always set.
        deterministic: CUDA only: bit-identical kernels at their price. A CPU is always deterministic.

    Raises:
        Refused: 13 when CUDA is asked for and missing, or has fewer devices than local ranks.
    """
    torch.set_num_threads(max(1, threads))
    if wanted not in ("auto", "cpu", "cuda"):
        raise Refused(
            f"{wanted} is not a device that Paceline drives",
            exit_code=Exit.CLUSTER,
            key="run.device",
            seen=wanted,
            rule="every layout is proven on cpu with gloo and on cuda with NCCL; other devices are not",
            allowed="auto, cpu, cuda",
            use='run.device = "auto"',
        )
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and present == 0):
        return Device("cpu", local_rank, "gloo")
    if present <= local_rank:
        raise Refused(
            "not enough CUDA devices",
            exit_code=Exit.CLUSTER,
            key="run.device",
            seen=f"{present} visible, rank {local_rank} of this host needs its own",
            rule="one device a rank",
            use='fewer ranks in the layout, or run.device = "cpu"',
        )
    torch.cuda.set_device(local_rank)
    if deterministic:
        torch.use_deterministic_algorithms(True)
    return Device("cuda", local_rank, "nccl")

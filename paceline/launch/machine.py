"""This machine, probed without torch: cores, memory, devices.

Under a container the kernel's figures are the host's; what this process may use is the smallest of its
affinity mask, its CPU quota and its memory limit, looked up in every control group from its own to the root.
"""

from __future__ import annotations

import csv
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.launch.environment import Environment
from paceline.ledger.outcome import Exit, Refused
from paceline.plan.cluster import Cluster, of_accelerator, parse_cluster, this_cpu

NVIDIA_SMI_S = 5.0


@dataclass(frozen=True, slots=True)
class Device:
    """One CUDA device, visible to this process."""

    index: int
    name: str
    memory_bytes: int
    uuid: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What this process may use.

    Attributes:
        cores: whole cores: of the affinity mask and the CPU quota the smaller, at least 1.
        cores_installed: what the kernel counts.
        memory_bytes: physical memory, or the control group's limit where that is smaller.
        devices: CUDA devices; ``CUDA_VISIBLE_DEVICES`` is respected.
    """

    host: str
    system: str
    cpu_model: str
    cores: int
    cores_installed: int
    memory_bytes: int
    devices: tuple[Device, ...] = ()


def refuse_platform(system: str = sys.platform) -> None:
    """First line of every command that starts a run.

    Raises:
        Refused: exit 2 on Windows.
    """
    if system.startswith(("win32", "cygwin")):
        raise Refused(
            "Windows is not supported",
            exit_code=Exit.USAGE,
            seen=system,
            rule="ranks are started by a forkserver, on Linux (on macOS they are spawned, untested)",
            use="WSL 2: `wsl --install`, then Paceline inside it",
        )


def platform_note(system: str = sys.platform) -> str:
    """What to say once about a platform that runs but is not tested; else empty."""
    return "" if system.startswith("linux") else f"{system}: ranks are spawned, which is untested here"


def probe(environment: Environment) -> Machine:
    """This machine. Takes a few milliseconds, and as long as ``nvidia-smi`` where there is an NVIDIA
    driver."""
    groups = list(_control_groups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")))
    mask = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        host=socket.gethostname(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu_model=cpu_model(),
        cores=max(1, int(min(mask, cpu_quota(groups)))),
        cores_installed=os.cpu_count() or 1,
        memory_bytes=min(_physical_memory(), memory_limit(groups)),
        devices=_devices(environment.cuda_visible_devices),
    )


def is_quiet(cores: int) -> bool:
    """Whether at most half of the cores were wanted by anybody over the last minute."""
    return os.getloadavg()[0] <= cores / 2


def machine_cluster(machine: Machine, device: str = "auto") -> Cluster:
    """``this``: the visible devices, or the CPU where there are none (or ``device`` says ``cpu``)."""
    if device == "cpu" or not machine.devices:
        return this_cpu(machine.cores, machine.memory_bytes, machine.cpu_model)
    return _cuda_cluster(machine.devices)


def cpu_model(info: Path = Path("/proc/cpuinfo")) -> str:
    try:
        for line in info.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Hardware"):
                return " ".join(value.split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_quota(groups: list[Path]) -> float:
    """Cores that the control groups grant; infinite without a limit."""
    quotas = [float("inf")]
    for group in groups:
        limit, period = (_words(group / "cpu.max") + ["", ""])[
            :2
        ]  # version 2: "200000 100000" or "max 100000"
        if not limit:
            limit, period = (_words(group / f"cpu.cfs_{name}_us") or [""] for name in ("quota", "period"))  # type: ignore[assignment]
            limit, period = limit[0], period[0]
        if limit.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(limit) / int(period))
    return min(quotas)


def memory_limit(groups: list[Path]) -> int:
    """Bytes that the control groups grant; a very large number without a limit."""
    limits = [1 << 62]
    for group in groups:
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(group / name)
            if words and words[0].isdecimal():
                limits.append(int(words[0]))
    return min(limits)


def visible(devices: list[Device], mask: str | None) -> tuple[Device, ...]:
    """The devices that ``CUDA_VISIBLE_DEVICES`` shows, in its order; the first invalid entry ends the
    list."""
    if mask is None:
        return tuple(devices)
    shown: list[Device] = []
    for word in (word.strip() for word in mask.split(",")):
        found = [d for d in devices if word and (str(d.index) == word or d.uuid.startswith(word))]
        if len(found) != 1 or found[0] in shown:
            break
        shown.append(found[0])
    return tuple(shown)


def _control_groups(membership: Path, root: Path) -> Iterator[Path]:
    """The folders of this process's control groups and of all above them, versions 1 and 2."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", "", ""])[:3]
        base = root / controllers if controllers else root
        folder = base / path.lstrip("/")
        yield from (above for above in (folder, *folder.parents) if above == base or base in above.parents)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 1 << 62


def _devices(mask: str | None) -> tuple[Device, ...]:
    if not Path("/proc/driver/nvidia").exists() or mask == "":
        return ()
    query = ["nvidia-smi", "--query-gpu=index,name,memory.total,uuid", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=NVIDIA_SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return visible(parse_devices(done.stdout), mask)


def parse_devices(table: str) -> list[Device]:
    """What ``nvidia-smi`` printed: index, name, memory in MiB, uuid."""
    rows = (row for row in csv.reader(table.splitlines(), skipinitialspace=True) if len(row) == 4)
    return [
        Device(int(i), name, int(float(mib)) << 20, uuid)
        for i, name, mib, uuid in rows
        if mib[:1].isdecimal()
    ]


def _cuda_cluster(devices: tuple[Device, ...]) -> Cluster:
    """The catalogue's sheet of the device; an unknown device is refused with the nearest names."""
    from dataclasses import replace

    name = devices[0].name.removeprefix("NVIDIA ").replace(" ", "-")
    sheet = parse_cluster(f"{len(devices)}x{_sheet_name(name)}").accelerator
    smallest = min(device.memory_bytes for device in devices)
    return replace(of_accelerator("this", 1, len(devices), sheet), memory_bytes=smallest, visible=True)


def _sheet_name(name: str) -> str:
    from paceline.plan.cluster import catalogue

    words = set(name.replace("HBM3", "SXM").upper().split("-"))
    best = max(catalogue(), key=lambda sheet: len(words & set(sheet.upper().split("-"))), default=name)
    return best if words & set(best.upper().split("-")) else name

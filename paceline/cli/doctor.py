"""``paceline doctor``: what this machine can do, and what is missing with the command that adds it.

Nothing here imports torch: versions come from package metadata, what torch can do from a short-lived process.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from paceline.cli.terminal import Terminal
from paceline.ledger.plural import many

NEEDED = ("torch", "numpy", "pydantic", "tomli-w", "typer", "rich", "safetensors", "tokenizers", "xxhash")
EXTRAS = {
    "hf": ("transformers", "datasets", "pyarrow"),
    "federated": ("flwr",),
    "ray": ("ray",),
    "kubernetes": ("kubernetes",),
    "track": ("tensorboard", "mlflow", "wandb"),
}
LOW_DISK_BYTES = 5_000_000_000
PROBE_S = 60.0

# Run in its own process: torch costs a second and the device driver stays untouched in this one.
_PROBE = """
import json, torch, torch.distributed as d
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
    "gloo": d.is_available() and d.is_gloo_available(),
    "nccl": d.is_available() and d.is_nccl_available(),
}))
"""


@dataclass(frozen=True)
class Finding:
    """One line: ``state`` is ok, note (nothing is wrong) or missing; ``use`` repairs it."""

    about: str
    state: str
    says: str
    use: str = ""

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def examine() -> list[Finding]:
    """Every check, in the order in which a first run would meet them."""
    probe = _probe_torch()
    return [
        _system(),
        *_packages(),
        *_backends(probe),
        *_devices(probe),
        _measured(),
        *_disk(),
        *_extras(),
        *_leftovers(),
        *_variables(),
    ]


def text(findings: list[Finding], terminal: Terminal) -> str:
    """One line a finding, and what to do beneath those that need something."""
    size = max(len(f.about) for f in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<8} {finding.about:<{size}}  {finding.says}")
        if finding.use:
            lines.append(f"{'':<8} {'':<{size}}  → {finding.use}")
    missing = sum(f.state == "missing" for f in findings)
    lines.append(f"{missing} missing" if missing else "nothing is missing")
    return terminal.plain("\n".join(lines))


def _system() -> Finding:
    says = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {many(_cores(), 'core')}"
    if sys.platform.startswith("linux"):
        return Finding("system", "ok", says)
    return Finding(
        "system",
        "note",
        f"{says}: ranks are spawned here, which is not tested",
        "use Linux for runs that matter",
    )


def _packages() -> list[Finding]:
    found: list[str] = []
    missing: list[str] = []
    for name in NEEDED:
        version = _version(name)
        (found if version else missing).append(f"{name} {version}" if version else name)
    lines = [Finding("versions", "ok", " · ".join(found))] if found else []
    if missing:
        lines.append(Finding("versions", "missing", " ".join(missing), f"pip install {' '.join(missing)}"))
    return lines


def _probe_torch() -> dict[str, Any] | str:
    if not _version("torch"):
        return "torch is not installed"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["torch cannot be imported"])[-1]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _backends(probe: dict[str, Any] | str) -> list[Finding]:
    if isinstance(probe, str):
        return [Finding("backends", "missing", probe, "pip install torch")]
    lines = []
    for name, what in (("gloo", "CPU ranks"), ("nccl", "CUDA ranks")):
        if probe[name]:
            lines.append(Finding("backends", "ok", f"{name} ({what})"))
        elif name == "nccl" and not probe["devices"]:
            lines.append(Finding("backends", "note", "no nccl, and no CUDA device that would need it"))
        else:
            lines.append(
                Finding("backends", "missing", f"torch {probe['version']} has no {name}", "pip install torch")
            )
    return lines


def _devices(probe: dict[str, Any] | str) -> list[Finding]:
    found = [] if isinstance(probe, str) else probe["devices"]
    lines = [Finding("devices", "ok", f"{len(found)} × {found[0]}")] if found else []
    if not found and Path("/proc/driver/nvidia/version").exists() and not isinstance(probe, str):
        lines.append(
            Finding(
                "devices",
                "missing",
                f"an NVIDIA driver is here, but torch {probe['version']} sees no device",
                "pip install torch (a CUDA build), and look at CUDA_VISIBLE_DEVICES",
            )
        )
    return [*lines, Finding("devices", "ok", f"cpu, {many(_cores(), 'core')}")]


def _measured() -> Finding:
    from paceline.api.plan import measured_here

    found = measured_here()
    if found is None:
        return Finding(
            "measured", "note", "this machine was not measured yet; the first `paceline train` does it"
        )
    return Finding("measured", "ok", f"this machine was measured at {found.at}, with torch {found.torch}")


def _disk() -> list[Finding]:
    from paceline.api.runs import runs_root
    from paceline.api.surroundings import cache_folder
    from paceline.cli.tables import bytes_text

    lines = []
    for name, folder in (("runs", runs_root()), ("cache", cache_folder())):
        there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
        free = shutil.disk_usage(there).free
        if not os.access(there, os.W_OK):
            lines.append(
                Finding("disk", "missing", f"{name}: {folder} cannot be written", f"chmod u+w {there}")
            )
        elif free < LOW_DISK_BYTES:
            use = "paceline runs, then paceline runs delete RUN --yes"
            lines.append(Finding("disk", "note", f"{name}: {folder}, only {bytes_text(free)} free", use))
        else:
            lines.append(Finding("disk", "ok", f"{name}: {folder}, {bytes_text(free)} free"))
    return lines


def _extras() -> list[Finding]:
    lines = []
    for extra, names in EXTRAS.items():
        absent = [name for name in names if not _version(name)]
        if absent:
            says = f"{extra}: {' '.join(absent)} not installed (what needs it is not in this version)"
            lines.append(Finding("extras", "note", says))
        else:
            lines.append(Finding("extras", "ok", f"{extra}: {' '.join(names)}"))
    return lines


def _leftovers() -> list[Finding]:
    from paceline.api.leftovers import leftovers

    found = leftovers()
    if not found:
        return [Finding("leftovers", "ok", "no stale lock, no half-written folder, no lost run")]
    return [Finding("leftovers", "note", item.says, item.use) for item in found]


def _variables() -> list[Finding]:
    from paceline.api.surroundings import environment

    lines = [
        Finding(
            "variables", "note", f"{name} is set, and makes no world: a launcher left it", f"unset {name}"
        )
        for name in environment().leftovers
    ]
    lines += [
        Finding(
            "variables", "missing", f"{name} is not a variable of Paceline and does nothing", f"unset {name}"
        )
        for name in environment().unknown
    ]
    return lines or [Finding("variables", "ok", "no leftover of a launcher, no unknown PACELINE_*")]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""``manifest.json``: what a run was made from, so that somebody else can make it again or say why not.

Every field of :data:`FIELDS` is always there; what does not apply or nobody stated says so in words.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any

from paceline.ledger.atomic import read_json, write_json
from paceline.ledger.folder import RunFolder
from paceline.ledger.records import NOT_STATED

HASHES = ("data", "tokenizer", "weights", "code", "job")
VERSIONS = ("python", "torch", "paceline", "numpy", "tokenizers")
EVALUATION = ("set", "hash", "times_read")
FIELDS = (
    "schema",
    "run_id",
    "kind",
    "created",
    "hashes",
    "preprocessing",
    "evaluation",
    "versions",
    "hardware_assumed",
    "hardware_found",
    "environment",
    "data_licence",
    "data_site",
    "data_hosts",
    "origins",
    "mfu_convention",
)
MFU_CONVENTION = (
    "model FLOPs of one token (6 x parameters without embedding + causal half of attention; recomputation "
    "not counted) x tokens/s / matmul peak in the compute precision"
)
# Variables that change what a run computes or how fast. Anything that may be a secret is dropped by name.
_MATTER = re.compile(
    r"(OMP|MKL|OPENBLAS|NCCL|GLOO|UCC|UCX|TORCH|PYTORCH|TORCHINDUCTOR|CUBLAS|CUDA|SLURM|PACELINE|KMP|GOMP)_\w+"
    r"|PYTHONHASHSEED|TOKENIZERS_PARALLELISM|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
)
_SECRET = re.compile(r"KEY|TOKEN(?!IZER)|SECRET|PASS|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)


def new_manifest(
    *,
    kind: str = "train",
    hashes: Mapping[str, str] | None = None,
    preprocessing: Any = NOT_STATED,
    evaluation_set: str = NOT_STATED,
    evaluation_hash: str = NOT_STATED,
    baselines: Mapping[str, Mapping[str, float]] | None = None,
    hardware_assumed: Any = NOT_STATED,
    hardware_found: Any = NOT_STATED,
    environment: Mapping[str, str] | None = None,
    data_licence: str = NOT_STATED,
    data_site: str = NOT_STATED,
    data_hosts: Any = NOT_STATED,
    origins: Mapping[str, str] | None = None,
    mfu_convention: str = MFU_CONVENTION,
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A complete manifest.

    Args:
        hashes: any of :data:`HASHES`.
        environment: all variables; filtered here.
        baselines: what simple models reach on the evaluation set, ``{"unigram": {"loss": …,
            "bits_per_byte": …}}``; the report draws them beside the loss.
        origins: where each value of the job came from.
    """
    unknown = set(hashes or {}) - set(HASHES)
    if unknown:
        raise ValueError(f"unknown hashes in the manifest: {sorted(unknown)}")
    return {
        "schema": 1,
        "run_id": uuid.uuid4().hex,
        "kind": kind,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "hashes": {name: (hashes or {}).get(name, NOT_STATED) for name in HASHES},
        "preprocessing": preprocessing,
        "evaluation": {
            "set": evaluation_set,
            "hash": evaluation_hash,
            "times_read": 0,
            "baselines": {k: dict(v) for k, v in (baselines or {}).items()},
        },
        "versions": {**found_versions(), **(versions or {})},
        "hardware_assumed": hardware_assumed,
        "hardware_found": hardware_found,
        "environment": keep_variables(environment or {}),
        "data_licence": data_licence,
        "data_site": data_site,
        "data_hosts": data_hosts,
        "origins": dict(origins or {}),
        "mfu_convention": mfu_convention,
    }


def write(folder: RunFolder, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest; a field that is absent raises ``ValueError`` naming it."""
    absent = missing(manifest)
    if absent:
        raise ValueError(f"manifest lacks {', '.join(absent)}")
    write_json(folder.manifest, manifest)


def missing(manifest: Mapping[str, Any]) -> list[str]:
    """Dotted names of fields that a manifest must have and this one lacks."""
    absent = [name for name in FIELDS if manifest.get(name) is None]
    for table, names in (("hashes", HASHES), ("versions", VERSIONS), ("evaluation", EVALUATION)):
        inner = manifest.get(table)
        if isinstance(inner, Mapping):
            absent += [f"{table}.{name}" for name in names if inner.get(name) is None]
    return absent


def count_eval_read(folder: RunFolder, times: int = 1) -> int:
    """Notes that the evaluation set was read again, and returns how often it has been.

    Each reading of a held-out set makes it a little less held out.
    """
    manifest = read_json(folder.manifest)
    evaluation = manifest.setdefault("evaluation", {})
    evaluation["times_read"] = int(evaluation.get("times_read", 0)) + times
    write_json(folder.manifest, manifest)
    return int(evaluation["times_read"])


def found_versions() -> dict[str, str]:
    """Versions of what decides the numbers, read from package metadata (nothing is imported)."""
    found = {"python": platform.python_version()}
    for package in (*VERSIONS[1:], "safetensors"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["platform"] = platform.platform()
    return found


def keep_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter, without secrets: by name, and logins inside addresses are cut out."""
    return {
        name: re.sub(r"://[^/@\s]*@", "://…@", value)
        for name, value in sorted(environment.items())
        if _MATTER.fullmatch(name) and not _SECRET.search(name)
    }

"""What makes a folder a run: files that Paceline wrote, never a ``job.toml`` alone.

A user's project holds a ``job.toml`` too, and what is taken for a run can be deleted. So a run is known by
what no other program writes: a ``status.json`` or a ``manifest.json`` of schema 1 with our own fields.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from paceline.ledger.atomic import read_json_or
from paceline.ledger.status import STATES

SUBFOLDERS = ("source", "phases", "ledger", "logs", "checkpoints", "evidence", "traces")
_FILES = (
    "job.toml",
    "manifest.json",
    "status.json",
    "lock",
    "stop",
    "metrics.jsonl",
    "report.html",
    "plan.html",
)
_TOP = frozenset((*SUBFOLDERS, *_FILES, "audit"))
# Half-written files of ours (atomic.py, lock.py), and what file systems and desktops leave anywhere.
_LITTER = re.compile(
    r"\.("
    + "|".join(re.escape(name) for name in _FILES)
    + r")\..+|\.nfs.+|\.DS_Store|Thumbs\.db|desktop\.ini"
)
_STATUS_FIELDS = ("attempt", "host", "kind", "pid", "started_s", "step", "updated_s")


def is_ours(path: Path) -> bool:
    """Whether a file that only a run has says that this folder is one."""
    return _our_status(path / "status.json") or _our_manifest(path / "manifest.json") or is_unborn(path)


def is_run(path: Path) -> bool:
    """As :func:`is_ours`, and a folder in the exact shape of a run whose files no longer read: it is listed."""
    return is_ours(path) or _has_the_shape(path)


def is_unborn(path: Path) -> bool:
    """A run that died before its first status: our subfolders, and not one file that means anything."""
    if not _has_the_shape(path):
        return False
    for _, _, files in os.walk(path):
        if any(not (name.startswith(".probe-") or _LITTER.fullmatch(name)) for name in files):
            return False
    return not strangers(path)


def strangers(path: Path) -> list[str]:
    """Names in the folder that a run never has there: somebody else's files."""
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError:
        return []
    return [name for name in names if name not in _TOP and not _LITTER.fullmatch(name)]


def _has_the_shape(path: Path) -> bool:
    return all((path / name).is_dir() for name in SUBFOLDERS)


def _our_status(path: Path) -> bool:
    found = read_json_or(path, None)
    return (
        isinstance(found, dict)
        and found.get("schema") == 1
        and found.get("state") in STATES
        and all(name in found for name in _STATUS_FIELDS)
    )


def _our_manifest(path: Path) -> bool:
    found = read_json_or(path, None)
    return (
        isinstance(found, dict)
        and found.get("schema") == 1
        and isinstance(found.get("run_id"), str)
        and re.fullmatch(r"[0-9a-f]{32}", found["run_id"]) is not None
        and isinstance(found.get("kind"), str)
        and isinstance(found.get("hashes"), dict)
    )

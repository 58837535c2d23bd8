"""A file system of a few megabytes, really mounted: what is full is full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A tmpfs at ``place``; skips where nobody may mount one."""
    if os.geteuid() != 0:
        pytest.skip(f"a file system ({options}) is mounted, which needs root")
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"this kernel lets nobody mount a tmpfs here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)

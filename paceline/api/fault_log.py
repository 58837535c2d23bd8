"""The log of a fault in Paceline itself: where it can be written, and what a report should carry."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from pathlib import Path


def write_fault(traceback: str, *, command: str, folder: Path | None = None) -> Path | None:
    """Writes the traceback into ``folder`` (a run's logs), else the cache; None if neither can be written."""
    from paceline import __version__

    now = datetime.now(UTC)
    text = (
        f"paceline {__version__} · Python {platform.python_version()} · {platform.platform()}\n"
        f"{now:%Y-%m-%dT%H:%M:%SZ} · command {command or '(none)'} · {sys.executable}\n\n{traceback}"
    )
    for place in (folder, _cache_logs()):
        if place is None:
            continue
        try:
            place.mkdir(parents=True, exist_ok=True)
            path = place / f"fault-{now:%Y%m%dT%H%M%S%f}.log"
            path.write_text(text, encoding="utf-8")
        except OSError:
            continue
        return path
    return None


def _cache_logs() -> Path | None:
    from paceline.api.surroundings import cache_folder

    try:
        return cache_folder() / "faults"
    except Exception:
        return None

"""Files that are either the old version or the new one, never half of each.

A temporary file beside the target, fsync, rename, fsync of the folder: after a power cut the name points to
complete content. Temporary names start with a dot, so that no reader takes one for the real file.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_bytes(path: Path | str, content: bytes) -> None:
    """Replaces ``path`` by ``content``, or leaves it as it was."""
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes 0600; a run is read by colleagues
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path | str, text: str) -> None:
    """Replaces ``path`` by ``text`` in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path | str, content: Mapping[str, Any] | list[Any]) -> None:
    """Replaces ``path`` by indented JSON; NaN and infinity are refused, since they are not JSON."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; whatever is wrong with it, also nesting without end, is a ``ValueError``."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def read_json(path: Path | str) -> Any:
    """The content of a JSON file; raises ``OSError`` or ``ValueError``."""
    return parse_json(Path(path).read_text(encoding="utf-8"))


def read_json_or(path: Path | str, default: Any) -> Any:
    """As :func:`read_json`, and ``default`` for a file that is absent, unreadable or not JSON (yet)."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return default


def sync_folder(folder: Path) -> None:
    """Makes a rename in ``folder`` durable; file systems that cannot sync a folder are left alone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)

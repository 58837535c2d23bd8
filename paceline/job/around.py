"""``config.json``, its folder or a hub id in place of a job file: a job around a published model, of defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from paceline.job.families.place import FILE, config_file, in_hub, is_hub_id, name_of
from paceline.job.tables.data import LARGEST_BPE, SMALLEST_BPE

LONGEST = 8192
_VOCABULARY = 8192


def config_of(path: Path, hub: Path | None = None) -> Path | None:
    """The config that JOB names; None when it names something else, as a folder with a job file does."""
    if path.is_dir():
        return path / FILE if (path / FILE).is_file() and not (path / "job.toml").is_file() else None
    if path.is_file():
        return path if path.suffix.lower() == ".json" else None
    return in_hub(str(path), hub) if hub is not None and is_hub_id(str(path)) else None


def config_values(file: Path) -> dict[str, Any]:
    """Flat keys of the job around a config: what the model itself decides, the rest is the schema's default.

    Raises:
        Refused: 2; the file does not describe a decoder.
    """
    file = config_file(str(file)).absolute()
    from paceline.job.families.published import published

    widths = published(str(file), {})
    values = {
        "model.hf": str(file),
        "data.sequence_length": min(widths["max_position_embeddings"], LONGEST),
        "run.name": _run_name(name_of(str(file))),
    }
    vocabulary = min(widths["vocab_size"], _VOCABULARY)
    values["data.tokenizer"] = f"bpe:{vocabulary}" if SMALLEST_BPE <= vocabulary <= LARGEST_BPE else "bytes"
    return values


def _run_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60]
    return plain or "model"

"""Published models by their ``config.json``: sizes as their authors published them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def config_file(name: str) -> Path:
    """The file of a model."""
    return FOLDER / f"{name}.json"


def config(name: str) -> dict[str, Any]:
    """Its object."""
    found: dict[str, Any] = json.loads(config_file(name).read_text(encoding="utf-8"))
    return found

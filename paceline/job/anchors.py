"""Which keys hold paths, and how a path is tied to the folder of the file that names it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.job.families.place import is_hub_id
from paceline.job.quantities import QuantityError
from paceline.job.sources import anchor, parse_sources, print_sources

_SOURCES = ("data.train", "data.eval")
_SUFFIXES = {"data.tokenizer": (".json",), "cluster.use": (".toml",)}


def anchored(key: str, value: Any, base: Path) -> Any:
    """``value`` with its paths made absolute against ``base``; what is no path is left alone."""
    if key in _SOURCES and isinstance(value, str | list | Mapping):
        try:
            items = parse_sources(value)
        except QuantityError:
            return value  # pydantic refuses it, with its key
        return print_sources(tuple(item.anchored(base) for item in items))
    if key == "model.hf" and isinstance(value, str) and value:
        return value if is_hub_id(value) and not (base / value).exists() else anchor(value, base)
    if isinstance(value, str) and value and value.endswith(_SUFFIXES.get(key, ())):
        return anchor(value, base)
    return value

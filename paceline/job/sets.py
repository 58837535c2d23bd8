"""``--set KEY=VALUE`` and its like in Python, as layers."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.job.anchors import anchored
from paceline.job.layers import Layer, checked
from paceline.job.lines import shortened
from paceline.job.schema import flatten, is_table
from paceline.ledger.outcome import Exit, Refused

Sets = Mapping[str, object] | Sequence[tuple[str, str]] | Sequence[str]


def from_sets(sets: Sets, name: str = "--set") -> list[Layer]:
    """One layer for each ``--set``, in order. A mapping holds values; pairs and ``KEY=VALUE`` hold text."""
    if isinstance(sets, Mapping):
        pairs = [(str(key), value) for key, value in sets.items()]
        return [_set(key, value, name, flag=False) for key, value in pairs]
    layers = []
    for one in sets:
        key, text = split_set(one) if isinstance(one, str) else one
        layers.append(_set(key.strip(), parse_set_value(text), name, flag=True))
    return layers


def _set(key: str, value: Any, name: str, *, flag: bool) -> Layer:
    flat = {key: value}
    if isinstance(value, Mapping) and (is_table(key) or key == "control"):
        flat = dict(flatten({key: value})) if "." not in key else dict(flatten(value, key + "."))
    layer = checked(Layer(name, flat, flag=flag))
    layer.values = {k: anchored(k, v, Path.cwd()) for k, v in layer.values.items()}
    return layer


def split_set(text: str) -> tuple[str, str]:
    """``KEY=VALUE`` at its first ``=``."""
    key, mark, value = text.partition("=")
    if not mark or not key.strip():
        raise Refused(
            "--set takes KEY=VALUE",
            exit_code=Exit.USAGE,
            seen=f"--set {shortened(text)}",
            rule="a key of the job file, =, and a TOML value or plain text; KEY= resets to the default",
            use="--set train.steps=200",
            where="--set",
        )
    return key.strip(), value


def parse_set_value(text: str) -> Any:
    """The right side of ``--set``: a TOML value, else the text itself; empty resets (None)."""
    if not text.strip():
        return None
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return document["value"] if set(document) == {"value"} else text

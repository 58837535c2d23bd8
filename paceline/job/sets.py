"""``--set KEY=VALUE`` and its like in Python, as layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.job.anchors import anchored
from paceline.job.flags import parse_set_value, split_set
from paceline.job.layers import Layer, checked
from paceline.job.lines import Place
from paceline.job.schema import flatten, is_table, nest

__all__ = ["Sets", "from_sets", "parse_set_value", "split_set"]

Sets = Mapping[str, object] | Sequence[tuple[str, str]] | Sequence[str]


def from_sets(sets: Sets, name: str = "--set") -> list[Layer]:
    """One layer for each ``--set``, in order. A mapping holds values; pairs and ``KEY=VALUE`` hold text."""
    if isinstance(sets, Mapping):
        pairs = [(str(key), value) for key, value in sets.items()]
        return [_set(key, value, name, flag=False) for key, value in pairs]
    layers = []
    for one in sets:
        key, text = split_set(one) if isinstance(one, str) else one
        layers.append(_set(key.strip(), parse_set_value(text), name, flag=True, text=text))
    return layers


def _set(key: str, value: Any, name: str, *, flag: bool, text: str = "") -> Layer:
    flat = {key: value}
    if isinstance(value, Mapping) and is_table(key):
        flat = dict(flatten(nest({key: value})))
    layer = checked(Layer(name, flat, {key: Place(0, text)} if text else {}, flag=flag))
    layer.values = {k: anchored(k, v, Path.cwd()) for k, v in layer.values.items()}
    return layer

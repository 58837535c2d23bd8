"""What has not arrived yet: keys, words and kinds of value that are refused by name, never ignored."""

from __future__ import annotations

import re

from paceline.job.quantities import QuantityError
from paceline.job.schema import PRESENT_MEANS_ON, Leaf
from paceline.job.sources import parse_sources

_SOURCES = {"hub": "06", "url": "06", "python": "06"}
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w.-]+)?")


def arrival_of(leaf: Leaf, value: object) -> str:
    """Number of the capability that brings this key or this value of it; empty when it is here."""
    if leaf.arrives:  # being there is what some tables mean, so not even a default of theirs passes
        at_default = leaf.table not in PRESENT_MEANS_ON and _is_default(leaf, value)
        return "" if at_default else leaf.arrives
    if leaf.name in ("data.train", "data.eval"):
        return _source(value)
    if leaf.name == "data.tokenizer" and isinstance(value, str) and not value.endswith(".json"):
        return "06" if _HUB_ID.fullmatch(value) else ""
    if leaf.name == "checkpoint.store" and isinstance(value, str) and "://" in value:
        return "04"
    return leaf.later(value)


def _source(value: object) -> str:
    try:
        kinds = {item.kind for item in parse_sources(value)}
    except QuantityError:
        return ""  # a fraction, or what pydantic refuses with its key
    return next((number for kind, number in _SOURCES.items() if kind in kinds), "")


def _is_default(leaf: Leaf, value: object) -> bool:
    """Whether a raw value says what the default says already."""
    default = leaf.default
    if isinstance(value, list):
        value = tuple(value)
    if type(value) is type(default):
        return bool(value == default)
    return isinstance(value, str) and default is not None and f'"{value}"' == leaf.about.shown

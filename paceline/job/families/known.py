"""The table of families."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Family:
    """A row of ``families.toml``, which says what each column means."""

    name: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    widths: Mapping[str, Any] = field(default_factory=dict)
    beyond: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bias: str = "all"
    window: str = "all"
    pattern: int = 0
    known: bool = True


@cache
def families() -> dict[str, Family]:
    """Every family by its ``model_type``."""
    table = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
    return {name: Family(name, **_row(table, name)) for name in table}


def _row(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    own = dict(table[name])
    base = _row(table, own.pop("like")) if "like" in own else {}
    merged = {**base, **own}
    for part in ("defaults", "widths", "beyond"):
        merged[part] = {**base.get(part, {}), **own.get(part, {})}
    for part in ("needs", "notes"):
        merged[part] = (*base.get(part, ()), *own.get(part, ()))
    return merged

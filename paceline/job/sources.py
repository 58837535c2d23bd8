"""Where data comes from: the Source type of the job file (interface §3).

A source is a path, a glob, a URL, ``python-stdlib``, ``hf://datasets/ORG/NAME``, ``"file.py:name"``, a list
of these, or a table ``{name = {path, weight}}``. Parsing looks at the text only; whether a file is there is
phase 2's question.
"""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Literal

from paceline.job.quantities import QuantityError

SourceKind = Literal["file", "glob", "url", "hub", "python", "python-stdlib"]
RULE = "a source is a path, a pattern, python-stdlib, a list of these, or a table of {path, weight}"
ALLOWED = '"input.txt", "corpus/*.txt", "python-stdlib", ["a.txt"], {web = {path = "w/*.txt", weight = 2.0}}'
_REF = re.compile(r".+\.py:[A-Za-z_]\w*|[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class SourceItem:
    """One origin of documents. ``name`` is empty unless the job names it; weights are relative."""

    path: str
    name: str = ""
    weight: float = 1.0

    @property
    def kind(self) -> SourceKind:
        """What ``path`` is, told by its form."""
        if self.path == "python-stdlib":
            return "python-stdlib"
        if self.path.startswith("hf://"):
            return "hub"
        if _URL.match(self.path):
            return "url"
        if _REF.fullmatch(self.path) and not _DRIVE.match(self.path):
            return "python"
        return "glob" if glob.has_magic(self.path) else "file"

    def anchored(self, base: Path) -> SourceItem:
        """The same source with a path that does not depend on the current folder."""
        return replace(self, path=anchor(self.path, base)) if self.kind in ("file", "glob") else self

    def portable(self) -> dict[str, Any]:
        """What names this source wherever its folder stands: used for the job's hash and on resume."""
        path = PurePath(self.path).name if self.kind in ("file", "glob") else self.path
        return {"name": self.name, "path": path, "weight": self.weight}


Sources = tuple[SourceItem, ...]


def anchor(path: str, base: Path) -> str:
    """``path`` relative to ``base`` made absolute; the folders of ``base`` are never read as a pattern."""
    if path.startswith("~"):
        path = os.path.expanduser(path)
    if os.path.isabs(path):
        return os.path.normpath(path)
    folder = os.path.abspath(base)
    if glob.has_magic(path):
        folder = glob.escape(folder)
    return os.path.normpath(os.path.join(folder, path))


def parse_sources(value: object) -> Sources:
    """Any form of Source, as a tuple of items; refuses an empty one."""
    if isinstance(value, tuple) and value and all(isinstance(item, SourceItem) for item in value):
        return value
    if isinstance(value, str):
        return (SourceItem(_path(value)),)
    if isinstance(value, list | tuple) and value:
        return tuple(SourceItem(_path(item)) for item in value)
    if isinstance(value, Mapping) and value:
        return tuple(_named(str(name), item) for name, item in value.items())
    raise QuantityError(RULE, allowed=ALLOWED)


def print_sources(sources: Sources) -> Any:
    """The shortest TOML value that parses to the same sources."""
    if any(item.name for item in sources):
        return {item.name: {"path": item.path, "weight": item.weight} for item in sources}
    paths = [item.path for item in sources]
    return paths[0] if len(paths) == 1 else paths


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise QuantityError(RULE, allowed=ALLOWED)
    return value


def _named(name: str, item: object) -> SourceItem:
    if isinstance(item, str):
        item = {"path": item}
    if not name or not isinstance(item, Mapping) or "path" not in item or set(item) - {"path", "weight"}:
        raise QuantityError("a named source is a table with path and, if wanted, weight", allowed=ALLOWED)
    weight = item.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise QuantityError("a source's weight is a number above zero", allowed="weight = 2.0")
    try:
        number = float(weight)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number > 0):
        raise QuantityError("a source's weight is a number above zero", allowed="weight = 2.0")
    return SourceItem(_path(item["path"]), name, number)

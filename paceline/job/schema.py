"""The job file's keys as a flat list, read from the tables: one source for loading, help, docs and tests.

A *leaf* is a key that holds a value (``train.steps``, ``cluster.link.intra``, ``control.*.above``). The
value may be a TOML table itself (``data.train``, ``model.rope_scaling``): then it is one value and is not
merged by key.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from paceline.job.tables.root import Tables
from paceline.job.tables.table import LATER, About, Table, about

ANY = "*"
# Being there is what these tables mean: [lora] alone asks for LoRA.
PRESENT_MEANS_ON = frozenset({"lora", "control", "claim", "rollout"})


@dataclass(frozen=True)
class Leaf:
    """One key of the job file, with all that is known of it."""

    name: str
    meaning: str
    default: Any
    choices: tuple[str, ...]
    about: About

    @property
    def arrives(self) -> str:
        """Number of the capability that brings this key; empty when it is here."""
        return self.about.arrives

    @property
    def form(self) -> str:
        """Type in the words of the interface; a choice shows its values."""
        return self.about.form or "|".join(self.choices)

    @property
    def table(self) -> str:
        """First part of the name; empty for a key at the top."""
        return self.name.partition(".")[0] if "." in self.name else ""

    def later(self, value: object) -> str:
        """Capability that brings ``value`` of this key; empty when it is here."""
        rules = self.about.later
        if not isinstance(value, str) or not rules:
            return ""
        word = value.partition(":")[0]
        if word in rules:
            return rules[word]
        return rules.get("", "") if value != self.default else ""


@cache
def leaves() -> dict[str, Leaf]:
    """Every key by its dotted name, in the order of the interface."""
    return {leaf.name: leaf for leaf in _walk(Tables, "")}


@cache
def table_names() -> frozenset[str]:
    """Every table by its dotted name (``cluster``, ``cluster.link``, ``control.*``)."""
    names: set[str] = set()
    for name in leaves():
        while "." in name:
            name = name.rpartition(".")[0]
            names.add(name)
    return frozenset(names)


@cache
def groups() -> dict[str, tuple[str, ...]]:
    """For each key of a one-of group, the other keys of that group (same table)."""
    members: dict[tuple[str, str], list[str]] = {}
    for leaf in leaves().values():
        if leaf.about.group:
            members.setdefault((leaf.name.rpartition(".")[0], leaf.about.group), []).append(leaf.name)
    return {name: tuple(n for n in names if n != name) for names in members.values() for name in names}


def rivals(name: str) -> tuple[str, ...]:
    """The other keys of the one-of group of ``name``, with its own NAME of ``[control.NAME]``."""
    table = name.rpartition(".")[0]
    return tuple(f"{table}.{other.rpartition('.')[2]}" for other in groups().get(pattern(name), ()))


def pattern(name: str) -> str:
    """The schema's name of a key: the NAME of ``[control.NAME]`` becomes ``*``."""
    parts = name.split(".")
    if len(parts) > 1 and parts[0] == "control":
        parts[1] = ANY
    return ".".join(parts)


def leaf_of(name: str) -> Leaf | None:
    """The leaf that ``name`` is, or None."""
    return leaves().get(pattern(name))


def is_table(name: str) -> bool:
    """Whether ``name`` is a table of the job file."""
    return pattern(name) in table_names()


def arrival_of_table(name: str) -> str:
    """Number of the capability that brings a table: that of its keys."""
    return next((leaf.arrives for leaf in leaves().values() if leaf.name.startswith(pattern(name) + ".")), "")


def arrival(number: str) -> str:
    """``"06"`` → words for a message."""
    return "arrives later" if number == LATER else f"arrives with capability {number}"


def _walk(table: type[Table], prefix: str) -> Iterator[Leaf]:
    for name, info in table.model_fields.items():
        inner, many = _table_in(info.annotation)
        if inner is None:
            yield _leaf(prefix + name, info)
        else:
            yield from _walk(inner, f"{prefix}{name}.{ANY}." if many else f"{prefix}{name}.")


def _leaf(name: str, info: FieldInfo) -> Leaf:
    default = info.get_default(call_default_factory=True, validated_data={})
    return Leaf(
        name,
        info.description or "",
        None if default is PydanticUndefined else default,
        tuple(_choices(info.annotation)),
        about(info),
    )


def _table_in(annotation: Any) -> tuple[type[Table] | None, bool]:
    """The table class that a field holds, and whether it holds many of them by name."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation, False
    origin = typing.get_origin(annotation)
    if origin is dict:
        return _table_in(typing.get_args(annotation)[1])[0], True
    if origin in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            found = _table_in(option)
            if found[0] is not None:
                return found
    return None, False


def _choices(annotation: Any) -> Iterator[str]:
    """Words of the Literal inside an annotation."""
    if typing.get_origin(annotation) is Literal:
        yield from (str(word) for word in typing.get_args(annotation))
    else:
        for part in typing.get_args(annotation):
            yield from _choices(part)


def flatten(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every key of a nested mapping; descends into tables of the schema only.

    An empty table says nothing and is left out, unless being there is what it means.
    """
    for raw, value in nested.items():
        name = str(raw)
        # A quoted key with a dot in it is not a path, and no key of ours.
        full = f"{prefix}{name}" if name and "." not in name else f'{prefix}"{name}"'
        if isinstance(value, Mapping) and is_table(full):
            if not value and full.partition(".")[0] in PRESENT_MEANS_ON:
                yield full, value
            yield from flatten(value, full + ".")
        else:
            yield full, value


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`flatten`."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *tables, last = name.split(".")
        place = nested
        for table in tables:
            place = place.setdefault(table, {})
        place[last] = value
    return nested

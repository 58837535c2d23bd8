"""What a job can say, in words: rows of keys, and the JSON Schema that editors complete keys from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.job.names import nearest, other_name, other_names
from paceline.job.presets import presets
from paceline.job.schema import Leaf, leaf_of, leaves
from paceline.job.tables.root import Tables
from paceline.job.words import default_text
from paceline.ledger.outcome import Exit, Refused


@dataclass(frozen=True)
class KeyRow:
    """One line of ``paceline job keys``. ``values`` are the words it takes, where they can be listed."""

    key: str
    form: str
    default: str
    unit: str
    meaning: str
    arrives: str
    values: tuple[str, ...] = ()


def keys(word: str = "") -> list[KeyRow]:
    """The keys that ``word`` names: a key, a table, another tool's name, or a word of a key or its meaning.

    Raises:
        Refused: nothing has that word.
    """
    word = word.strip().strip("[]").lower()
    if leaf_of(word) is not None:
        return [row(found) for found in (leaf_of(word),) if found]
    other = other_name(word) if word else None
    rows = [leaf for name, leaf in leaves().items() if word in name or word in leaf.meaning.lower()]
    if other and other.ours:
        rows = [leaf for leaf in leaves().values() if leaf.name == other.ours] + [
            leaf for leaf in rows if leaf.name != other.ours
        ]
    if rows:
        return [row(leaf) for leaf in rows]
    near = nearest(word)
    raise Refused(
        f"no key has the word {word!r}",
        exit_code=Exit.USAGE,
        seen=word,
        rule="`job keys` looks in keys, their meanings, and the names that other tools have for them",
        use=f"paceline job keys {near}" if near else "paceline job keys",
    )


def row(leaf: Leaf) -> KeyRow:
    """The documented row of a key."""
    values = leaf.choices
    if leaf.name == "model.preset":
        values = tuple(p.name + (f" ({p.arrives})" if p.arrives else "") for p in presets().values())
    elif leaf.about.later:
        values = tuple(_marked(leaf, value) for value in values)
    shown = default_text(leaf)
    return KeyRow(leaf.name, leaf.form, shown, leaf.about.unit, leaf.meaning, leaf.arrives, values)


def _marked(leaf: Leaf, value: str) -> str:
    later = leaf.later(value)
    return f"{value} ({later})" if later else value


def other_name_rows() -> list[tuple[str, str, str]]:
    """(their name, whose it is, what to write here) of every foreign name, for the docs."""
    return [(o.name, o.of, o.use or o.ours) for o in other_names().values()]


def json_schema() -> dict[str, Any]:
    """JSON Schema of the job file: every key with its description, default, unit and arrival."""
    schema = Tables.model_json_schema(mode="validation")
    definitions = schema.get("$defs", {})
    for name, leaf in leaves().items():
        _document(_property(schema, definitions, name.split(".")), leaf)
    _tidy(schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Paceline job file",
        **{name: value for name, value in schema.items() if name not in ("title", "$schema")},
    }


def _property(schema: dict[str, Any], definitions: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """The node of one key, found through references to the tables."""
    node: dict[str, Any] = schema
    for part in path:
        node = node["additionalProperties"] if part == "*" else node["properties"][part]
        options = [node, *node.get("anyOf", [])]
        if part != path[-1]:
            node = next((o for o in options if "$ref" in o or "additionalProperties" in o), node)
        while part != path[-1] and "$ref" in node:
            node = definitions[node["$ref"].rpartition("/")[2]]
    return node


def _document(node: dict[str, Any], leaf: Leaf) -> None:
    node.pop("about", None)
    node.pop("default", None)
    said = leaf.meaning + (f" ({leaf.about.unit})" if leaf.about.unit else "")
    node["description"] = f"{said}. Default: {default_text(leaf)}"
    if leaf.arrives:
        node["description"] += f". Not in this version (arrives: {leaf.arrives})"
        node["x-arrives"] = leaf.arrives
    if leaf.about.unit:
        node["x-unit"] = leaf.about.unit
    if leaf.default is not None and not leaf.about.shown:
        plain = _plain_default(leaf)
        if plain is not None:
            node["default"] = plain


def _plain_default(leaf: Leaf) -> Any:
    """The default as JSON; None where it has no plain form."""
    value = leaf.default
    if leaf.form in ("Interval", "Duration"):
        return default_text(leaf).strip('"')
    if isinstance(value, tuple):
        return list(value) if all(isinstance(v, str | int | float) for v in value) else None
    return value if isinstance(value, str | int | float | bool) else None


def _tidy(node: Any) -> None:
    """TOML has no null: a key that may be left out needs no null type. Titles repeat the keys."""
    if isinstance(node, list):
        for item in node:
            _tidy(item)
    if not isinstance(node, dict):
        return
    node.pop("about", None)
    if isinstance(node.get("title"), str):
        node.pop("title")
    if "anyOf" in node:  # pydantic leaves the limits of text quantities under its own names
        for limit in ("ge", "gt", "le", "lt"):
            node.pop(limit, None)
    options = [o for o in node.get("anyOf", []) if o != {"type": "null"}]
    if len(options) == 1:
        node.pop("anyOf")
        for name, value in options[0].items():
            node.setdefault(name, value)
    elif options:
        node["anyOf"] = options
    if "default" in node and node["default"] is None:
        node.pop("default")
    for value in node.values():
        _tidy(value)

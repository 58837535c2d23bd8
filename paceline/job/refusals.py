"""From what is wrong to an error that can be acted on: key, value seen, rule, allowed, what to write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from paceline.job.lines import shortened
from paceline.job.quantities import QuantityError
from paceline.job.schema import ANY, Leaf, arrival, is_table, leaf_of, leaves
from paceline.job.words import choices, example, expected, value_text
from paceline.ledger.outcome import Exit, Refused

_LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of at most 64 bits",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text in quotes",
    "string_unicode": "text in Unicode",
    "string_too_short": "text that is not empty",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "missing": "given",
}


def from_validation(error: ValidationError) -> Refused:
    """The first thing that pydantic found, as a refusal of the job (exit 2)."""
    found = error.errors(include_url=False)
    first = found[0]
    name = _key_of(first["loc"])
    leaf = leaf_of(name)
    rule, allowed, use = _explained(dict(first), leaf)
    value = first.get("input")
    if leaf is None and is_table(name):
        return not_a_table(name, value)
    return wrong_value(name, value, rule, allowed=allowed, use=use, range_=str(first["type"]) in _LIMITS)


def wrong_value(
    name: str, value: object, rule: str, *, allowed: str = "", use: str = "", range_: bool = False
) -> Refused:
    """The error for a value of ``name`` that breaks ``rule``; ``use`` is a TOML value."""
    leaf = leaf_of(name)
    if leaf is not None and not use:
        plain_text = leaf.form == "str" and isinstance(value, int | float)
        use = f'"{value}"' if plain_text else example(leaf)
    return Refused(
        f"{name} is out of range" if range_ else f"{name}: {expected(leaf)} is expected",
        exit_code=Exit.USAGE,
        key=name,
        seen=f"{name} = {value_text(value)}",
        rule=rule,
        allowed=allowed or (", ".join(choices(leaf)) if leaf else ""),
        use=f"{name} = {use}" if use else "",
    )


def not_a_table(name: str, value: object) -> Refused:
    """``train = 5`` where ``[train]`` is a table."""
    inner = next((n for n in leaves() if n.startswith(f"{name}.") and ANY not in n), "")
    use = f"model.preset = {value_text(value)}" if name == "model" and isinstance(value, str) else f"[{name}]"
    return Refused(
        f"{name} is a table",
        exit_code=Exit.USAGE,
        key=name,
        seen=f"{name} = {value_text(value)}",
        rule=f"its keys are written under [{name}], or as {inner} = …"
        if inner
        else "it is written in brackets",
        use=use,
    )


def not_arrived(name: str, value: object, number: str) -> Refused:
    """A key or value that comes with a later capability: refused by name, never ignored."""
    leaf = leaf_of(name)
    whole = leaf is None or bool(leaf.arrives)
    here = choices(leaf) if leaf and not whole else ()
    use = f"{name} = {example(leaf)}" if leaf and not whole else "leave it out"
    return Refused(
        f"{name} is not in this version" if whole else f"{name}: {value_text(value)} is not in this version",
        exit_code=Exit.USAGE,
        key=name,
        seen=f"{name} = {value_text(value)}",
        rule=f"what has not arrived is refused, never ignored; this {arrival(number)}",
        allowed=", ".join(here),
        use=use,
    )


def exclusive(names: Iterable[str], where: str) -> Refused:
    """Two keys of a one-of group in one place."""
    given = sorted(names)
    return Refused(
        f"{given[0]} and {given[1]} exclude each other",
        exit_code=Exit.USAGE,
        key=given[1],
        seen=" and ".join(given),
        rule="one of them says it all",
        allowed=" or ".join(given),
        use=f"leave {given[1]} out",
        where=where,
    )


def _explained(found: dict[str, Any], leaf: Leaf | None) -> tuple[str, str, str]:
    """(rule, allowed, use) of one pydantic error."""
    kind, context = str(found["type"]), found.get("ctx") or {}
    cause = context.get("error")
    if isinstance(cause, QuantityError):
        return cause.rule, cause.allowed, cause.use
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        unit = f" {leaf.about.unit}" if leaf and leaf.about.unit else ""
        return f"{words} {context[name]}{unit}", "", ""
    if kind == "literal_error":
        return "one of the words of this key", "", ""
    if kind in _TYPES:
        return _TYPES[kind], "", ""
    return shortened(str(found["msg"])), "", ""


def _key_of(loc: tuple[int | str, ...]) -> str:
    """Dotted key of a pydantic location: as many of its words as make a key or a table."""
    name = ""
    for part in loc:
        longer = f"{name}.{part}" if name else str(part)
        if leaf_of(longer) is None and not is_table(longer):
            break
        name = longer
    return name or ".".join(str(part) for part in loc)

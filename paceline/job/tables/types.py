"""The value types of the job file as pydantic types: each parses its text form and prints it back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, PlainValidator, WithJsonSchema

from paceline.job import interval, quantities, sources
from paceline.job.quantities import QuantityError

_TEXT_OR_INT = [{"type": "integer"}, {"type": "string"}]

Count = Annotated[
    int,
    BeforeValidator(quantities.parse_count),
    WithJsonSchema({"anyOf": _TEXT_OR_INT, "examples": [1000, "10B"]}),
]
Duration = Annotated[
    float,
    BeforeValidator(quantities.parse_duration),
    PlainSerializer(quantities.print_duration, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["30s", "5min", "2h"]}),
]
Bytes = Annotated[
    int,
    BeforeValidator(quantities.parse_bytes),
    PlainSerializer(quantities.print_bytes, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["80GB", "80GiB"]}),
]
Rate = Annotated[
    float,
    BeforeValidator(quantities.parse_rate),
    PlainSerializer(quantities.print_rate, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["400Gbit", "50GB"]}),
]
Interval = Annotated[
    interval.Interval,
    PlainValidator(interval.parse_interval),
    PlainSerializer(interval.print_interval, return_type=str),
    WithJsonSchema({"anyOf": _TEXT_OR_INT, "examples": [500, "1 epoch", "5min", "10%", "never"]}),
]
_SOURCE_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "weight": {"type": "number", "exclusiveMinimum": 0},
                },
                "required": ["path"],
                "additionalProperties": False,
            },
        },
    ]
}
Sources = Annotated[
    tuple[sources.SourceItem, ...],
    PlainValidator(sources.parse_sources),
    PlainSerializer(sources.print_sources),
    WithJsonSchema(_SOURCE_SCHEMA),
]


def number(value: object, rule: str, allowed: str = "") -> float:
    """A finite float from an int or a float; a bool is neither."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise QuantityError(rule, allowed=allowed)
    try:
        as_float = float(value)
    except OverflowError:
        as_float = math.inf
    if not math.isfinite(as_float):
        raise QuantityError(f"{rule}, finite", allowed=allowed)
    return as_float


def parse_steps_or_fraction(value: object) -> int | float:
    """A number of steps (int), or a fraction of the run in (0, 1) (float)."""
    rule, allowed = "steps as a whole number, or a fraction of the run below 1", "100, 0.02"
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value <= quantities.LARGEST:
            return value
        raise QuantityError(rule, allowed=allowed)
    share = number(value, rule, allowed)
    if share == 0:
        return 0
    if not 0 < share < 1:
        use = str(int(share)) if share >= 1 and share == int(share) else ""
        raise QuantityError(rule, allowed=allowed, use=use)
    return share


StepsOrFraction = Annotated[
    int | float, PlainValidator(parse_steps_or_fraction), WithJsonSchema({"type": "number", "minimum": 0})
]


def parse_held_out(value: object) -> tuple[sources.SourceItem, ...] | float:
    """A fraction of the documents in (0, 1), or a Source of its own."""
    if isinstance(value, bool | int | float):
        share = number(value, "a fraction of the documents, between 0 and 1", "0.01")
        if not 0 < share < 1:
            raise QuantityError("a fraction of the documents is between 0 and 1", allowed="0.01, or a source")
        return share
    return sources.parse_sources(value)


HeldOut = Annotated[
    tuple[sources.SourceItem, ...] | float,
    PlainValidator(parse_held_out),
    PlainSerializer(lambda v: v if isinstance(v, float) else sources.print_sources(v)),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, _SOURCE_SCHEMA]}
    ),
]


def as_tuple(value: object) -> tuple[Any, ...]:
    """A TOML list, frozen. A lone string is not a list of its letters."""
    if not isinstance(value, list | tuple):
        use = f'["{value}"]' if isinstance(value, str) and value.isprintable() else ""
        raise QuantityError("a list in brackets", use=use)
    return tuple(value)


def as_list(value: tuple[Any, ...]) -> list[Any]:
    """Printed back. Not the built-in: pydantic reads a serializer's signature, and a built-in's costs 10 ms."""
    return list(value)


Strings = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]


def parse_betas(value: object) -> tuple[float, float]:
    """AdamW's two decay rates, each in [0, 1)."""
    rule, allowed = "two numbers, each from 0 to below 1", "[0.9, 0.95]"
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise QuantityError(rule, allowed=allowed)
    first, second = (number(beta, rule, allowed) for beta in value)
    if not (0 <= first < 1 and 0 <= second < 1):
        raise QuantityError(rule, allowed=allowed)
    return first, second


_BETA = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
Betas = Annotated[
    tuple[float, float],
    PlainValidator(parse_betas),
    PlainSerializer(as_list),
    WithJsonSchema({"type": "array", "items": _BETA, "minItems": 2, "maxItems": 2}),
]


def parse_settings(value: object) -> dict[str, Any]:
    """A free table (arguments, environment): any TOML value, handed on as it is."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise QuantityError("a table", allowed="{name = value}")
    return dict(value)


Settings = Annotated[dict[str, Any], PlainValidator(parse_settings), WithJsonSchema({"type": "object"})]

"""``--set KEY=VALUE`` as text: how it is read, and how an answer is written so that a shell hands it on."""

from __future__ import annotations

import shlex
import tomllib
from typing import Any

from paceline.job.lines import shortened
from paceline.ledger.outcome import Exit, Refused


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


def as_flag(key: str, toml: str) -> str:
    """``--set KEY=VALUE`` for a TOML value, ready to paste; text loses its quotes where nothing is lost."""
    if toml.startswith('"'):
        inner = parse_set_value(toml)
        if isinstance(inner, str) and parse_set_value(inner) == inner:
            toml = inner
    return f"--set {key}={shlex.quote(toml)}"


def flagged(use: str) -> str:
    """A repair ``KEY = VALUE`` as a flag; any other repair as it is."""
    key, mark, value = use.partition(" = ")
    return as_flag(key, value) if mark and " " not in key and ", and " not in value else use

"""Jobs as text to read and edit: a resolved job with the origin of each value, and the commented new job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomli_w

from paceline.job.load import Loaded
from paceline.job.schema import ANY, Leaf, arrival, flatten, leaves
from paceline.job.words import choices, default_text, example
from paceline.ledger.outcome import Exit, Refused

SCHEMA_FILE = "job.schema.json"
KINDS = {"pretrain": "", "sft": "06", "vision": "06", "federated": "07", "claim": "05"}
# What a new job sets; every other key stands beside it as a comment, at its default.
_SET = ("data.train", "model.preset", "train.steps")
_FIRST = ("data", "model", "train", "optimizer", "eval", "layout", "run")
_NOTE_AT = 44
# A table of any name has no defaults to show: one whole example.
_RULE = (
    "# A rule on a metric, as many as you like; take all of it out of its comment. Keys: `paceline job keys control`.",
    "#[control.spike]",
    '#signal = "loss_ratio"',
    "#above = 3.0",
    '#action = "rollback"',
    '#owner = "you@example.org"',
)


def show(loaded: Loaded) -> str:
    """The resolved job as TOML, each value with its origin as a comment; it loads to the same job."""
    lines: list[str] = []
    table = ""
    for name, value in flatten(loaded.job.to_dict()):
        where, _, key = name.rpartition(".")
        if where != table:
            lines += ["", f"[{where}]"]
            table = where
        lines.append(_noted(f"{key} = {inline(value)}", loaded.origins.get(name, "")))
    return "\n".join(lines).strip() + "\n"


def inline(value: Any) -> str:
    """A TOML value on one line."""
    if isinstance(value, Mapping):
        pairs = (f"{tomli_w.dumps({name: 0})[:-5]} = {inline(one)}" for name, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(inline(one) for one in value) + "]"
    return tomli_w.dumps({"v": value})[4:].strip("\n")


def new(kind: str = "pretrain") -> str:
    """A commented job file; line 1 is the directive by which editors find the schema.

    Raises:
        Refused: a kind that has not arrived, or that is none.
    """
    number = KINDS.get(kind)
    if number is None or number:
        known = number is not None
        raise Refused(
            f"job new {kind} is not in this version" if known else f"job new has no kind {kind!r}",
            exit_code=Exit.USAGE,
            seen=kind,
            rule=f"this {arrival(number or '')}" if known else "a kind is one of those below",
            allowed="pretrain" if known else ", ".join(KINDS),
            use="paceline job new pretrain > job.toml",
        )
    lines = [
        f"#:schema ./{SCHEMA_FILE}",
        "# A Paceline job. What is behind a # is the default or an example: take the # away to set it.",
        f"# Line 1 lets editors complete keys, once `paceline job schema > {SCHEMA_FILE}` has been run here.",
        "# `paceline job keys WORD` explains a key; `paceline plan` and `paceline train` take this file.",
        "",
        _line(leaves()["extends"]),
    ]
    here = [leaf for leaf in leaves().values() if not leaf.arrives and leaf.table and ANY not in leaf.name]
    tables = list(dict.fromkeys(leaf.name.rpartition(".")[0] for leaf in here))
    for table in sorted(tables, key=lambda t: _FIRST.index(t) if t in _FIRST else len(_FIRST)):
        own = [leaf for leaf in here if leaf.name.rpartition(".")[0] == table]
        if own:
            lines += ["", f"[{table}]", *(_line(leaf) for leaf in own)]
    return "\n".join([*lines, "", *_RULE]) + "\n"


def _line(leaf: Leaf) -> str:
    note = leaf.meaning + (f" ({leaf.about.unit})" if leaf.about.unit else "")
    if leaf.choices and not leaf.about.form:
        note = " | ".join(choices(leaf)) + " · " + note
    if leaf.default is None:
        note += f" · default: {default_text(leaf)}"
    off = "" if leaf.name in _SET else "# "
    return _noted(f"{off}{leaf.name.rpartition('.')[2]} = {example(leaf)}", note)


def _noted(text: str, note: str) -> str:
    return f"{text:<{_NOTE_AT}}  # {note}" if note else text

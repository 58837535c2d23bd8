"""Mistakes on the command line, in the form of interface §9 with the nearest option or command.

Typer's usage exceptions are recognised by what they carry, not by their class: typer vendors click in new
releases and imports it in old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from paceline.cli.surface import BY_NAME, COMMANDS
from paceline.ledger.outcome import Exit, Refused

# What people type who come from other tools, and ours.
OTHER_WORDS = {
    "run": "train",
    "fit": "train",
    "start": "train",
    "launch-local": "train",
    "resume": "train JOB --resume",
    "generate": "sample",
    "infer": "sample",
    "evaluate": "eval",
    "test": "eval",
    "list": "runs",
    "ls": "runs",
    "ps": "runs",
    "status": "runs",
    "stop": "runs stop",
    "rm": "runs delete",
    "delete": "runs delete",
    "kill": "runs stop",
    "init": "job new",
    "new": "job new",
    "validate": "job check",
    "schema": "job schema",
    "keys": "job keys",
    "env": "doctor",
    "info": "doctor",
    "diff": "compare",
    "log": "logs",
    "tail": "logs RUN -f",
    "ckpt": "checkpoint",
    "measure": "cluster measure",
    "help": "--help",
    "version": "--version",
}


def is_usage_error(error: BaseException) -> bool:
    """Whether typer says that the command line is wrong."""
    return hasattr(error, "format_message") and getattr(error, "exit_code", None) == Exit.USAGE


def explain(error: Any, argv: Sequence[str]) -> Refused:
    """The usage error as a repair instruction."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "paceline"
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        return _unknown_option(str(option), path, _options_of(ctx), argv)
    entry = BY_NAME.get(path.removeprefix("paceline "))
    usage = f"{path} {entry.args}" if entry else f"{path} --help"
    message = error.format_message().strip().rstrip(".")
    param = getattr(error, "param", None)
    if param is not None and type(error).__name__ == "MissingParameter":
        name = _name_of(param)
        return Refused(
            f"{name} is missing",
            exit_code=Exit.USAGE,
            seen=shown(argv),
            rule=f"`{path}` needs {name}",
            use=f"{usage} {name} {param.metavar}" if name.startswith("-") and param.metavar else usage,
        )
    if param is not None:
        return Refused(
            message.split(": ", 1)[-1],
            exit_code=Exit.USAGE,
            key=_name_of(param),
            seen=shown(argv),
            rule=(getattr(param, "help", "") or "").strip(),
            use=f"{path} --help",
        )
    return Refused(message, exit_code=Exit.USAGE, seen=shown(argv), rule=usage, use=f"{path} --help")


def unknown_command(word: str, section: str, names: Iterable[str]) -> Refused:
    """The refusal of a command that does not exist."""
    names = list(names)
    prefix = f"paceline {section} ".rstrip() + " "
    ours = OTHER_WORDS.get(word.lower()) if not section else None
    near = nearest(word, names)
    if ours:
        use = f"paceline {ours}"
    elif near:
        use = prefix + near
    else:
        use = f"{prefix}--help"
    return Refused(
        f"{word} is not a command of `{prefix.strip()}`",
        exit_code=Exit.USAGE,
        seen=word,
        allowed="" if ours or near else " ".join(names),
        use=use,
    )


def shown(argv: Sequence[str]) -> str:
    """The command line as it was typed, short."""
    text = "paceline " + " ".join(argv)
    return text if len(text) <= 80 else text[:77] + "…"


def nearest(word: str, names: Sequence[str]) -> str:
    """The most similar name, or an empty string."""
    close = get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return close[0] if close else ""


def command_of(argv: Sequence[str]) -> str:
    """The command that a command line names, as far as it names one (for errors before it is parsed)."""
    words = [word for word in argv if not word.startswith("-")]
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in BY_NAME:
            return name
    first = words[0] if words else ""
    return first if any(command.path[0] == first for command in COMMANDS) else ""


def _unknown_option(option: str, path: str, known: list[str], argv: Sequence[str]) -> Refused:
    near = nearest(option, known)
    return Refused(
        f"{option} is not an option of `{path}`",
        exit_code=Exit.USAGE,
        seen=shown(argv),
        rule="options are strict, as keys are",
        allowed="" if near else " ".join(known),
        use=f"{path} {near}" if near else f"{path} --help",
    )


def _options_of(ctx: Any) -> list[str]:
    if ctx is None:
        return []
    found = [name for param in ctx.command.params for name in getattr(param, "opts", ())]
    return [name for name in found if name.startswith("--")]


def _name_of(param: Any) -> str:
    options = [name for name in getattr(param, "opts", ()) if name.startswith("--")]
    return options[0] if options else str(getattr(param, "metavar", None) or param.name).upper()

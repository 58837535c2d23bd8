"""How a command or a run ends: the exit-code table and the errors that carry a code.

One source for the command line, the status file, the engines' retry rules and the docs (interface §8, §9).
An error is a repair instruction: the value seen, the rule, what is allowed, and what to set instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Every code that a Paceline process may end with. Blocks follow the five phases; >= 126 is the shell's."""

    DONE = 0
    FAULT = 1
    USAGE = 2
    RULE = 10
    MEMORY = 11
    DEADLINE = 12
    CLUSTER = 13
    ABSTAIN = 14
    DATA = 20
    MISSING = 21
    USER_CODE = 22
    DEVICE_MEMORY = 23
    PEERS = 30
    HUNG = 31
    DISAGREE = 32
    VERSIONS = 33
    UNSAFE = 34
    CONTROL = 40
    NONFINITE = 41
    SITES = 42
    PRIVACY = 43
    UPDATE = 44
    LIMIT = 45
    PREEMPTED = 50
    UNSAVED = 51
    NOTHING_TO_RESUME = 52
    DAMAGED = 53
    MISMATCH = 54
    STORE = 55
    LOCKED = 56
    RESTARTS = 57
    RANK_DIED = 58
    UNPROVEN = 61
    REFUTED = 62
    INCONCLUSIVE = 63
    NO_EVIDENCE = 64


MEANING: dict[Exit, str] = {
    Exit.DONE: "done",
    Exit.FAULT: "a fault in Paceline (asks for a report, traceback in the log)",
    Exit.USAGE: "command line or job file wrong (parse, unknown key, type, range)",
    Exit.RULE: "combination refused by the rule book",
    Exit.MEMORY: "does not fit in memory or on disk",
    Exit.DEADLINE: "deadline or budget cannot be met",
    Exit.CLUSTER: "cluster is not what the job says",
    Exit.ABSTAIN: "planner abstains (names the measurement)",
    Exit.DATA: "data refused",
    Exit.MISSING: "model, checkpoint import or extra missing",
    Exit.USER_CODE: "exception in the user's code (rank, file, line)",
    Exit.DEVICE_MEMORY: "out of device memory",
    Exit.PEERS: "peers missing at rendezvous (named)",
    Exit.HUNG: "collective hung (rank, operation, number)",
    Exit.DISAGREE: "ranks disagree (shape, order)",
    Exit.VERSIONS: "versions or job hash differ",
    Exit.UNSAFE: "unsafe transport refused",
    Exit.CONTROL: "stopped by a control",
    Exit.NONFINITE: "loss or gradient not finite",
    Exit.SITES: "too few sites",
    Exit.PRIVACY: "privacy budget spent",
    Exit.UPDATE: "update refused (site named)",
    Exit.LIMIT: "a limit of [limits] reached",
    Exit.PREEMPTED: "preempted: saved, run again with --resume",
    Exit.UNSAVED: "preempted, not saved in time (last verified stands)",
    Exit.NOTHING_TO_RESUME: "nothing to resume",
    Exit.DAMAGED: "checkpoint damaged (file, tensor)",
    Exit.MISMATCH: "checkpoint and job do not match",
    Exit.STORE: "store not writable or full",
    Exit.LOCKED: "run locked by another process",
    Exit.RESTARTS: "restarts used up without progress",
    Exit.RANK_DIED: "a rank died and restarts are off",
    Exit.UNPROVEN: "proof failed",
    Exit.REFUTED: "claim refuted",
    Exit.INCONCLUSIVE: "claim inconclusive",
    Exit.NO_EVIDENCE: "not enough evidence (diagnose)",
}


class PacelineError(Exception):
    """An end that Paceline can explain.

    Args:
        message: the headline, without a full stop: what is wrong, in the user's words.
        exit_code: the code of the process that ends with this error.
        key: the job key or option that it is about, if one is (``layout.use``).
        seen: the value found.
        rule: the rule that it breaks.
        allowed: the values that would be accepted.
        use: what to set or run instead, ready to paste.
        where: where the value came from (``job.toml:14``, ``--layout``).
    """

    def __init__(
        self,
        message: str,
        *,
        exit_code: int = Exit.FAULT,
        key: str = "",
        seen: object = "",
        rule: str = "",
        allowed: str = "",
        use: str = "",
        where: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = int(exit_code)
        self.key, self.seen, self.rule = key, str(seen), rule
        self.allowed, self.use, self.where = allowed, use, where

    def to_dict(self) -> dict[str, Any]:
        """The same fields as JSON (``--json``, and the pipe from a rank to its launcher)."""
        return {
            "kind": type(self).__name__,
            "message": self.message,
            "exit_code": self.exit_code,
            "key": self.key,
            "seen": self.seen,
            "rule": self.rule,
            "allowed": self.allowed,
            "use": self.use,
            "where": self.where,
        }


class Refused(PacelineError):
    """Refused before anything was changed: job, data, layout or checkpoint is not acceptable."""


class Failed(PacelineError):
    """Something that had started could not be finished."""


class Preempted(PacelineError):
    """Stopped from outside at the end of a step; the state is saved unless the code says otherwise."""


_KINDS: dict[str, type[PacelineError]] = {c.__name__: c for c in (PacelineError, Refused, Failed, Preempted)}


def from_dict(fields: Mapping[str, Any]) -> PacelineError:
    """The error that :meth:`PacelineError.to_dict` wrote, of the same class."""
    rest = {k: v for k, v in fields.items() if k not in ("kind", "message")}
    return _KINDS.get(str(fields.get("kind")), PacelineError)(str(fields.get("message", "")), **rest)


LONGEST_LINE = 400
LONGEST_REPAIR = 4000
MOST_LINES = 16


# Longer than any identifier in decimal: what a number of so many digits is, its length says best.
_LONG_NUMBER = re.compile(r"(?<![0-9A-Za-z])[0-9]{41,}(?![0-9A-Za-z])")


def printable(text: str, longest: int = LONGEST_LINE) -> str:
    """``text`` on one line, without anything that acts on a terminal: what is not printable is escaped.

    Keys, names and file contents are the user's, or somebody's; an error must not run what is in them.
    """
    text = _LONG_NUMBER.sub(lambda found: f"{found[0][:6]}… ({len(found[0])} digits)", text)
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def render(error: PacelineError, *, width: int = 100) -> str:
    """One screen, in the form of interface §9; ``where`` and the exit code stand at the right margin.

    A field may have lines of its own; everything else that is not printable is escaped, and long text is cut.
    """
    head = (
        error.message
        if not error.key or error.message.startswith(error.key)
        else f"{error.key}: {error.message}"
    )
    rows = [
        (name, value)
        for name, value in (
            ("seen", error.seen),
            ("rule", error.rule),
            ("allowed", error.allowed),
            ("use", error.use),
        )
        if value
    ]
    lines = [f"error  {printable(head)}"]
    where = printable(error.where)
    notes = {"seen": where, (rows[-1][0] if rows else ""): f"exit {error.exit_code}"}
    if len(rows) == 1 and rows[0][0] == "seen" and where:
        notes["seen"] = f"{where}  exit {error.exit_code}"
    for name, value in rows:
        longest = LONGEST_REPAIR if name in ("use", "allowed") else LONGEST_LINE
        first, *more = (printable(line, longest) for line in value.split("\n")[:MOST_LINES])
        lines.append(_with_note(f"  {name:<8} {first}", notes.get(name, ""), width))
        lines.extend(f"  {'':<8} {line}" for line in more)
    if not rows:
        lines.append(_with_note("", f"exit {error.exit_code}", width))
    return "\n".join(lines)


def _with_note(left: str, note: str, width: int) -> str:
    if not note:
        return left
    gap = max(2, width - len(left) - len(note))
    return f"{left}{' ' * gap}{note}"

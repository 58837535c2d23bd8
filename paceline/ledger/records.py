"""Phase records: what each of the five phases was asked, decided, changed and handed on (DESIGN §2).

A record always has every field. One that cannot be filled says ``not stated`` and shows as a gap in the
report; one that is absent is a mistake of the program and is refused when the record is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from paceline.ledger.atomic import read_json_or, write_json
from paceline.ledger.folder import RunFolder
from paceline.ledger.outcome import Exit, Refused

NOT_STATED = "not stated"
RECORDED = ("plan", "compute", "deliver", "update", "recover")

# What a phase hands to the next one, by name. The receiver checks each when it starts.
HANDOFF: dict[str, tuple[str, ...]] = {
    "plan": ("layout", "global_batch", "job_hash", "data_hash", "tokenizer_hash", "vocabulary"),
    "compute": ("parameters_hash",),
    "deliver": ("world_size", "mesh"),
    "update": ("step", "position", "parameters_hash"),
    "recover": (),
}
_BOUNDARY_EXIT = {"update": Exit.MISMATCH}


@dataclass(frozen=True)
class PhaseRecord:
    """The fields of a phase record; values are JSON (text, numbers, lists, tables)."""

    objective: Any = NOT_STATED  # what this phase was to achieve
    owner: Any = NOT_STATED  # person or role who answers for the decision
    inputs: Any = NOT_STATED
    assumptions: Any = NOT_STATED
    decision: Any = NOT_STATED
    changes: Any = NOT_STATED  # which state it changes
    rejected: Any = NOT_STATED  # list of {alternative, reason, value, limit, wins_when}
    shortcut: Any = NOT_STATED  # what merely adding devices would have done here
    evidence: Any = NOT_STATED  # measured
    check: Any = NOT_STATED  # the command that proves the change right, and its result
    uncertainty: Any = NOT_STATED
    resources: Any = NOT_STATED  # seconds, bytes, memory, energy, money where known
    controls: Any = NOT_STATED  # rules armed, whether they fired; human decisions
    handoff: Any = NOT_STATED  # what the next phase needs, by the names of HANDOFF
    reproduce: Any = NOT_STATED  # the command that makes this phase happen again


FIELDS: tuple[str, ...] = tuple(f.name for f in fields(PhaseRecord))


def write(folder: RunFolder, n: int, record: PhaseRecord | Mapping[str, Any], *, attempt: int = 0) -> None:
    """Writes ``phases/N-NAME.json`` for phase ``n`` (1–5); a later attempt replaces an earlier one's record.

    Raises:
        ValueError: a field is absent or ``None``, is unknown, or ``handoff`` lacks a name of :data:`HANDOFF`.
    """
    phase = RECORDED[n - 1]
    content = asdict(record) if isinstance(record, PhaseRecord) else dict(record)
    absent = [name for name in FIELDS if content.get(name) is None]
    unknown = [name for name in content if name not in FIELDS]
    if absent or unknown:
        raise ValueError(f"record of phase {n} ({phase}): absent {absent}, unknown {unknown}")
    handoff = content["handoff"]
    if handoff != NOT_STATED:
        lacking = [name for name in HANDOFF[phase] if name not in handoff]
        if lacking:
            raise ValueError(f"record of phase {n} ({phase}): handoff lacks {lacking}")
    folder.phases.mkdir(parents=True, exist_ok=True)
    write_json(
        folder.phases / f"{n}-{phase}.json", {"schema": 1, "phase": phase, "attempt": attempt, **content}
    )


def read(folder: RunFolder, n: int) -> dict[str, Any] | None:
    """The record of phase ``n`` with every field present; ``None`` when it is missing or unreadable."""
    phase = RECORDED[n - 1]
    found = read_json_or(folder.phases / f"{n}-{phase}.json", None)
    if not isinstance(found, dict):
        return None
    return {"phase": phase, "attempt": 0, **dict.fromkeys(FIELDS, NOT_STATED), **found}


def read_all(folder: RunFolder) -> list[dict[str, Any] | None]:
    """The five records in order, ``None`` for each that is missing."""
    return [read(folder, n) for n in range(1, len(RECORDED) + 1)]


def gaps(record: Mapping[str, Any] | None) -> list[str]:
    """The fields that nobody stated; all of them for a missing record."""
    if record is None:
        return list(FIELDS)
    return [name for name in FIELDS if record.get(name, NOT_STATED) in (NOT_STATED, "", [], {})]


def check_handoff(record: Mapping[str, Any], have: Mapping[str, Any]) -> None:
    """The next phase's first act: everything that ``record`` handed over must be what it now holds.

    Values are compared as JSON, so a tuple equals a list. What was handed over as ``not stated`` binds none.

    Raises:
        Refused: 33, and 54 for what update hands to recover; names the first name that is missing or differs.
    """
    phase = str(record.get("phase", "plan"))
    handed = record.get("handoff", NOT_STATED)
    if not isinstance(handed, Mapping):
        return
    after = RECORDED[(RECORDED.index(phase) + 1) % len(RECORDED)]
    for name, value in handed.items():
        if value == NOT_STATED or (name in have and _canonical(have[name]) == _canonical(value)):
            continue
        seen = f"{name} = {have[name]}" if name in have else f"{name} is missing"
        raise Refused(
            f"what {phase} handed to {after} does not hold: {name}",
            exit_code=_BOUNDARY_EXIT.get(phase, Exit.VERSIONS),
            key=name,
            seen=seen,
            rule=f"{phase} stated {name} = {value}, and {after} starts only on what was stated",
            use="plan again with the job as it is now: paceline train JOB, without --resume",
        )


def content_hash(content: Any) -> str:
    """``sha256:…`` of any JSON value; key order does not matter."""
    return "sha256:" + hashlib.sha256(_canonical(content).encode()).hexdigest()


def parameters_hash(shapes: Mapping[str, Sequence[int]]) -> str:
    """Hash of parameter names with their whole (not sharded) shapes."""
    return content_hash({name: [int(n) for n in shape] for name, shape in shapes.items()})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)

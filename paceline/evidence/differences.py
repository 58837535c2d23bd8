"""What differs between runs, sorted by what it could explain: technique, environment, data pipeline.

Bookkeeping differs too, and is shown, but explains no result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.evidence.facts import Facts, flatten

Cause = Literal["technique", "environment", "data pipeline", "bookkeeping"]

# Two runs of one job differ in these anyway.
_NAMES = ("run.name", "run.root", "run.tags", "run.note")
# Where a run is kept, shown, looked at and restarted: no step computes anything else for it.
_BOOKKEEPING = (
    "run.scratch",
    "track.",
    "restart.",
    "limits.",
    "launch.",
    "rollout.",
    "checkpoint.",
    "eval.every",
)
_ENVIRONMENT = ("cluster.", "run.device")
_DATA = ("data.", "eval.")


@dataclass(frozen=True)
class Difference:
    """One key or fact whose value is not the same in all runs."""

    key: str
    values: tuple[Any, ...]
    cause: Cause

    def to_dict(self) -> dict[str, Any]:
        return {"key": self.key, "values": list(self.values), "cause": self.cause}


def differences(runs: Sequence[Facts]) -> list[Difference]:
    """Job keys, layout, hashes, versions, hardware and variables that are not equal everywhere."""
    found = [
        Difference(key, values, cause_of(key))
        for key, values in _unequal([_job_facts(run) for run in runs])
        if key not in _NAMES
    ]
    found += [Difference(key, v, "data pipeline") for key, v in _unequal([_data_facts(run) for run in runs])]
    found += [Difference(key, v, "environment") for key, v in _unequal([_environment(run) for run in runs])]
    return found


def cause_of(key: str) -> Cause:
    """Which of the four a key of the job belongs to."""
    if key.startswith(_BOOKKEEPING):
        return "bookkeeping"
    if key.startswith(_ENVIRONMENT):
        return "environment"
    return "data pipeline" if key.startswith(_DATA) else "technique"


def data_hashes(runs: Sequence[Facts]) -> list[str]:
    """Each run's hash of its training data; "" where nobody stated one."""
    found = []
    for run in runs:
        hashes = run.manifest.get("hashes")
        value = hashes.get("data", "") if isinstance(hashes, Mapping) else ""
        found.append("" if value == "not stated" else str(value))
    return found


def _job_facts(run: Facts) -> dict[str, Any]:
    """The job, with the layout that really ran in place of what was asked for (``auto``)."""
    keys = dict(run.job_keys)
    if run.layout:
        keys["layout.use"] = run.layout
    return keys


def _data_facts(run: Facts) -> dict[str, Any]:
    facts: dict[str, Any] = {"data hash": data_hashes([run])[0]}
    hashes = run.manifest.get("hashes")
    if isinstance(hashes, Mapping):
        facts["tokenizer hash"] = hashes.get("tokenizer", "")
    evaluation = run.manifest.get("evaluation")
    if isinstance(evaluation, Mapping):
        facts["evaluation set hash"] = evaluation.get("hash", "")
    return facts


def _environment(run: Facts) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for table in ("versions", "hardware_found", "environment"):
        value = run.manifest.get(table)
        if isinstance(value, Mapping):
            facts |= {f"{table} {key}": v for key, v in flatten(value).items()}
        elif value is not None:
            facts[table] = value
    hashes = run.manifest.get("hashes")
    if isinstance(hashes, Mapping):
        facts["code hash"] = hashes.get("code", "")
    return facts


def _unequal(tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[Any, ...]]]:
    keys = sorted({key for table in tables for key in table})
    rows = [(key, tuple(table.get(key) for table in tables)) for key in keys]
    return [(key, values) for key, values in rows if len({json.dumps(v, default=str) for v in values}) > 1]

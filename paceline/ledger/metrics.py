"""``metrics.jsonl``: one row a step, evaluation, round or event (interface §7).

Rows are appended in single writes, so a killed process leaves at most a torn last line, which readers ignore.
Rows of lost steps stay in the file; for one step the row with the greatest attempt counts.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.ledger.atomic import parse_json

KINDS = ("train", "eval", "round", "event")
TEXTS = ("kind", "set", "event", "detail")
LARGEST = 1e60
"""No quantity of a run is larger (fp32 ends at 3e38); sums and squares of what is below stay finite."""


class MetricsWriter:
    """Appends rows. Every row needs ``kind``, ``step``, ``attempt`` and ``time_s``."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.lseek(self._file, 0, os.SEEK_END)
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def write(self, row: Mapping[str, Any]) -> None:
        """One line. NaN and infinity are not JSON: they become null, and the row says ``nonfinite: 1``."""
        missing = [key for key in ("kind", "step", "attempt", "time_s") if key not in row]
        if missing or row["kind"] not in KINDS:
            raise ValueError(f"metrics row lacks {', '.join(missing) or 'a known kind'}: {dict(row)!r}")
        finite = {key: _finite(value) for key, value in row.items()}
        if _has_nonfinite(row):
            finite["nonfinite"] = max(1, _integer(row.get("nonfinite")))
        line = json.dumps(finite, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        os.write(self._file, line.encode("utf-8") + b"\n")

    def close(self) -> None:
        """Closes the file; a second close does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_rows(path: Path | str, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """Rows in file order, of one ``kind`` or all; lines that are not complete JSON objects are left out."""
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError:
        return
    with file:
        for line in file:
            row = _row(line)
            if row is not None and (kind is None or row["kind"] == kind):
                yield row


def counted_rows(path: Path | str, kind: str) -> list[dict[str, Any]]:
    """Rows by step: for one step (and one ``set`` of an evaluation) the row with the greatest attempt.

    Events are not tied to a step in this way: all of them are returned, in file order.
    """
    rows = read_rows(path, kind)
    if kind == "event":
        return list(rows)
    best: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows:
        key = (_integer(row.get("step")), str(row.get("set", "")))
        if key not in best or _integer(row.get("attempt")) >= _integer(best[key].get("attempt")):
            best[key] = row
    return [best[key] for key in sorted(best)]


def columns(path: Path | str, kind: str = "train") -> dict[str, list[Any]]:
    """The counted rows as columns of equal length; absent numbers are NaN, absent texts ``None``."""
    rows = counted_rows(path, kind)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _column([row.get(name) for row in rows]) for name in names}


def last_row(path: Path | str, kind: str = "train", *, window_bytes: int = 1 << 16) -> dict[str, Any] | None:
    """The newest row of a kind, read from the file's end only (for lists of runs)."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - window_bytes))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        row = _row(line)
        if row is not None and row["kind"] == kind:
            return row
    return None


def _row(line: bytes) -> dict[str, Any] | None:
    """The row that a line holds, its types checked; ``None`` for a line that is torn or not a row.

    A row needs its kind, step and attempt. Any other key may be lost alone: a number that is none is ``None``.
    """
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or row.get("kind") not in KINDS:
        return None
    if not all(_is_count(row.get(name)) for name in ("step", "attempt")):
        return None
    return {key: _value(row["kind"], key, value) for key, value in row.items()}


def _value(kind: str, key: str, value: Any) -> Any:
    if key in TEXTS:
        return value if isinstance(value, str) or key == "detail" else str(value)[:200]
    if isinstance(value, int | float) and not -LARGEST < value < LARGEST:
        return None  # NaN is in no range
    if kind in ("train", "eval") and not isinstance(value, int | float):
        return None
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def _has_nonfinite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_has_nonfinite(v) for v in value.values())
    if isinstance(value, list | tuple):
        return any(_has_nonfinite(v) for v in value)
    return isinstance(value, float) and not math.isfinite(value)


def _column(values: list[Any]) -> list[Any]:
    if all(v is None or isinstance(v, int | float) for v in values):
        return [math.nan if v is None else v for v in values]
    return values


def _integer(value: Any) -> int:
    return value if isinstance(value, int) else 0

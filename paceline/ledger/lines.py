"""Reads a rank's ledger file, as :mod:`paceline.ledger.spans` wrote it.

Times are integer ticks of 100 ns on the writing host's monotonic clock, so that sums are exact. Torn and
foreign lines are left out: a rank may have been killed while it wrote.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from paceline.ledger.atomic import parse_json
from paceline.ledger.folder import RunFolder
from paceline.ledger.spans import SCHEMA, TICKS_PER_S, UNATTRIBUTED, Account

Interval = tuple[int, int]


MOST_OVER = 1e-3
"""Part of a line's length by which its spans may exceed it: clocks are read one after another."""


class SpanRow(NamedTuple):
    """One uninterrupted stretch of one account."""

    account: Account
    start: int
    end: int


class CallTicks(NamedTuple):
    """A collective as :class:`~paceline.ledger.spans.CallRow` gave it, in ticks."""

    axis: str
    group: str
    op: str
    seq: int
    bytes: int
    enter: int
    leave: int | None
    wait: Interval | None
    cause: str = ""


@dataclass(frozen=True)
class Line:
    """What one rank wrote for one step (``step`` is ``None`` for what came after the last)."""

    attempt: int
    step: int | None
    start: int
    end: int
    spans: tuple[SpanRow, ...]
    calls: tuple[CallTicks, ...]

    def ticks(self) -> dict[Account, int]:
        """Ticks by account, unattributed among them: the values sum to the line's wall time."""
        sums: dict[Account, int] = defaultdict(int)
        for span in self.spans:
            sums[span.account] += span.end - span.start
        sums[UNATTRIBUTED] = self.end - self.start - sum(sums.values())
        return dict(sums)


@dataclass(frozen=True)
class RankLedger:
    """All lines of one rank, of all attempts."""

    rank: int
    host: str = ""
    lines: tuple[Line, ...] = ()
    clock_offsets: tuple[tuple[int, str, float], ...] = ()  # (attempt, host, Unix time at clock zero)


def read_rank(path: Path | str) -> RankLedger:
    """One rank's file; a missing one is a ledger without lines."""
    ledger = RankLedger(rank=_rank_of(Path(path)))
    header: dict[str, Any] = {}
    lines: list[Line] = []
    clocks: list[tuple[int, str, float]] = []
    try:
        content = Path(path).read_bytes().splitlines()
    except OSError:
        content = []
    for raw in content:
        try:
            row = parse_json(raw)
            if row.get("kind") == "ledger":
                header = {}
                if row["schema"] != SCHEMA:
                    raise ValueError("a ledger of another schema")
                clocks.append(_clock(row))
                header = row
                ledger = replace(ledger, rank=_count(row["rank"]), host=_text(row["host"]))
            elif header:
                lines.append(_line(row, header))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError):
            continue
    return replace(ledger, lines=tuple(lines), clock_offsets=tuple(clocks))


def read_ranks(folder: RunFolder) -> tuple[RankLedger, ...]:
    """Every rank's ledger of a run, by rank."""
    found = (read_rank(path) for path in sorted(folder.ledgers.glob("rank-*.jsonl")))
    return tuple(ledger for ledger in found if ledger.lines)


def _clock(header: dict[str, Any]) -> tuple[int, str, float]:
    zero_s = _seconds(header["origin_unix_s"]) - _seconds(header["origin_s"])
    for phase in header["phases"]:
        _text(phase)
    return _count(header["attempt"]), _text(header["host"]), zero_s


def _line(row: dict[str, Any], header: dict[str, Any]) -> Line:
    """The line, or an error for a value of a wrong type: what is summed later is what it says it is."""
    origin = _ticks(header["origin_s"])
    phases = header["phases"]
    spans = []
    for phase, reason, start_s, duration_s in row["spans"]:
        start = origin + _ticks(start_s)
        if duration_s < 0:
            raise ValueError("a span ends before it starts")
        spans.append(SpanRow((phases[phase], _text(reason)), start, start + _ticks(duration_s)))
    calls = []
    for axis, group, op, seq, size, enter_s, leave_s, wait_start_s, wait_end_s, *cause in row["calls"]:
        wait = None
        if wait_start_s is not None and wait_end_s is not None:
            wait = (origin + _ticks(wait_start_s), origin + _ticks(wait_end_s))
        left = None if leave_s is None else origin + _ticks(leave_s)
        names = (_text(axis), _text(group), _text(op))
        why = _text(cause[0]) if cause else ""
        calls.append(CallTicks(*names, _count(seq), _count(size), origin + _ticks(enter_s), left, wait, why))
    start, end = (origin + _ticks(row[name]) for name in ("start_s", "end_s"))
    if end < start:
        raise ValueError("a line ends before it starts")
    booked = sum(span.end - span.start for span in spans)
    if booked > (end - start) * (1 + MOST_OVER) + len(spans):  # each was rounded to a tick
        raise ValueError("more is booked than the line is long")
    step = row["step"]
    return Line(
        header["attempt"], None if step is None else _count(step), start, end, tuple(spans), tuple(calls)
    )


def _ticks(seconds: Any) -> int:
    return round(_seconds(seconds) * TICKS_PER_S)


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or not math.fabs(value) < 1e11:  # a clock of 3000 years
        raise ValueError(f"{str(value)[:40]} is not a time")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(f"{str(value)[:40]} is not a count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]} is not a text")
    return value


def _rank_of(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0

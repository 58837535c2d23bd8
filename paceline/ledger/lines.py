"""Reads a rank's ledger file, as :mod:`paceline.ledger.spans` wrote it.

Times are integer ticks of 100 ns on the writing host's monotonic clock, so that sums are exact. Torn and
foreign lines are left out: a rank may have been killed while it wrote.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from paceline.ledger.folder import RunFolder
from paceline.ledger.spans import TICKS_PER_S, UNATTRIBUTED, Account

Interval = tuple[int, int]


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
            row = json.loads(raw)
            if row.get("kind") == "ledger":
                header = row
                ledger = replace(ledger, rank=int(row["rank"]), host=str(row["host"]))
                clocks.append((int(row["attempt"]), str(row["host"]), row["origin_unix_s"] - row["origin_s"]))
            elif header:
                lines.append(_line(row, header))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            continue
    return replace(ledger, lines=tuple(lines), clock_offsets=tuple(clocks))


def read_ranks(folder: RunFolder) -> tuple[RankLedger, ...]:
    """Every rank's ledger of a run, by rank."""
    found = (read_rank(path) for path in sorted(folder.ledgers.glob("rank-*.jsonl")))
    return tuple(ledger for ledger in found if ledger.lines)


def _line(row: dict[str, Any], header: dict[str, Any]) -> Line:
    origin = round(header["origin_s"] * TICKS_PER_S)
    phases = header["phases"]
    scale = TICKS_PER_S
    spans = []
    for phase, reason, start_s, duration_s in row["spans"]:
        start = origin + round(start_s * scale)
        spans.append(SpanRow((phases[phase], reason), start, start + round(duration_s * scale)))
    calls = []
    for axis, group, op, seq, size, enter_s, leave_s, wait_start_s, wait_end_s in row["calls"]:
        wait = None
        if wait_start_s is not None and wait_end_s is not None:
            wait = (origin + round(wait_start_s * scale), origin + round(wait_end_s * scale))
        left = None if leave_s is None else origin + round(leave_s * scale)
        calls.append(CallTicks(axis, group, op, seq, size, origin + round(enter_s * scale), left, wait))
    start, end = (origin + round(row[name] * scale) for name in ("start_s", "end_s"))
    return Line(header["attempt"], row["step"], start, end, tuple(spans), tuple(calls))


def _rank_of(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0

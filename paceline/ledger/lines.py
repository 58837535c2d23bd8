"""Reads a rank's ledger file, as :mod:`paceline.ledger.spans` wrote it.

Times are integer ticks of 100 ns on the writing host's monotonic clock, so that sums are exact. Torn and
foreign lines are left out: a rank may have been killed while it wrote.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.ledger.folder import RunFolder
from paceline.ledger.spans import TICKS_PER_S, UNATTRIBUTED, Account

Interval = tuple[int, int]


@dataclass(frozen=True)
class SpanRow:
    """One uninterrupted stretch of one account."""

    account: Account
    start: int
    end: int


@dataclass(frozen=True)
class CallTicks:
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

    def ticks(moment_s: float) -> int:
        return origin + round(moment_s * TICKS_PER_S)

    spans = []
    for phase, reason, start_s, duration_s in row["spans"]:
        start = ticks(start_s)
        spans.append(SpanRow((phases[phase], reason), start, start + round(duration_s * TICKS_PER_S)))
    calls = []
    for axis, group, op, seq, size, enter, leave, wait_start, wait_end in row["calls"]:
        wait = None if wait_start is None or wait_end is None else (ticks(wait_start), ticks(wait_end))
        left = None if leave is None else ticks(leave)
        calls.append(CallTicks(axis, group, op, seq, size, ticks(enter), left, wait))
    return Line(
        header["attempt"], row["step"], ticks(row["start_s"]), ticks(row["end_s"]), tuple(spans), tuple(calls)
    )


def _rank_of(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0

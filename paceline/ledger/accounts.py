"""Seconds by account, and which waiting was a peer's fault.

A collective that blocks may be moving bytes or waiting for a rank that has not arrived. One rank cannot tell;
the records of all ranks for the same (group, sequence) can: until the last of them arrived nothing moved, so
that part of a rank's wait is ``("idle", "peer")`` and not ``deliver``. :func:`split_waits` recuts the spans
so; the sum of a rank's accounts does not change.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.ledger.folder import RunFolder
from paceline.ledger.lines import Interval, Line, RankLedger, SpanRow, read_rank, read_ranks
from paceline.ledger.spans import PHASES, TICKS_PER_S, UNATTRIBUTED, Account

__all__ = [
    "PEER",
    "RankAccounts",
    "RankLedger",
    "Split",
    "accounts",
    "rank_accounts",
    "read_rank",
    "read_ranks",
    "split_waits",
    "step_accounts",
    "where_time_went",
]

PEER: Account = ("idle", "peer")


@dataclass(frozen=True)
class RankAccounts:
    """Where one rank's seconds went: ``seconds`` and ``unattributed_s`` sum to ``wall_s``, to a tick."""

    rank: int
    wall_s: float
    seconds: dict[Account, float]
    unattributed_s: float


@dataclass(frozen=True)
class Split:
    """Ledgers after :func:`split_waits`; seconds that the others idled, by the rank they waited for."""

    ranks: tuple[RankLedger, ...]
    late_s: dict[int, float] = field(default_factory=dict)

    @property
    def latest_rank(self) -> int | None:
        """The rank that cost the others most, ``None`` when nobody waited."""
        return max(self.late_s, key=lambda r: self.late_s[r]) if self.late_s else None


def split_waits(ranks: Sequence[RankLedger]) -> Split:
    """Moves waiting for a late peer from ``deliver`` to ``("idle", "peer")``, and names the late ranks.

    For each (attempt, group, seq): idle = last arrival − own arrival, clipped to the interval in which the
    rank stood still for this call.
    """
    shifts = _shifts(ranks)
    last = _last_arrivals(ranks, shifts)
    late: dict[int, int] = defaultdict(int)
    split = tuple(_split_rank(ledger, last, shifts, late) for ledger in ranks)
    return Split(split, {rank: ticks / TICKS_PER_S for rank, ticks in sorted(late.items()) if ticks})


def rank_accounts(ledger: RankLedger) -> RankAccounts:
    """Sums of one rank over all its lines."""
    sums = _total(line.ticks() for line in ledger.lines)
    wall = sum(line.end - line.start for line in ledger.lines)
    unattributed = sums.pop(UNATTRIBUTED, 0)
    return RankAccounts(
        rank=ledger.rank,
        wall_s=wall / TICKS_PER_S,
        seconds={account: ticks / TICKS_PER_S for account, ticks in sorted(sums.items(), key=_order)},
        unattributed_s=unattributed / TICKS_PER_S,
    )


def accounts(folder: RunFolder) -> dict[int, RankAccounts]:
    """Where each rank's seconds went, after :func:`split_waits`."""
    return {ledger.rank: rank_accounts(ledger) for ledger in split_waits(read_ranks(folder)).ranks}


def step_accounts(ledger: RankLedger) -> dict[int, dict[Account, float]]:
    """Seconds by account for each step, unattributed among them; of a repeated step the last attempt."""
    newest: dict[int, Line] = {}
    for line in ledger.lines:
        if line.step is not None and (line.step not in newest or line.attempt >= newest[line.step].attempt):
            newest[line.step] = line
    return {
        step: {account: ticks / TICKS_PER_S for account, ticks in newest[step].ticks().items()}
        for step in sorted(newest)
    }


def where_time_went(source: RunFolder | Iterable[RankAccounts]) -> list[dict[str, Any]]:
    """Seconds of all ranks by account, phases in flow order, the largest reason first; unattributed is last.

    ``share`` is of all device-seconds, so the shares sum to 1. An empty list: no ledger could be read.
    """
    ranks = list(accounts(source).values()) if isinstance(source, RunFolder) else list(source)
    sums = _total({**r.seconds, UNATTRIBUTED: r.unattributed_s} for r in ranks)
    wall = sum(r.wall_s for r in ranks)
    if wall <= 0:
        return []
    return [
        {"phase": phase, "reason": reason, "seconds": round(seconds, 7), "share": seconds / wall}
        for (phase, reason), seconds in sorted(sums.items(), key=_order)
    ]


def _shifts(ranks: Sequence[RankLedger]) -> dict[tuple[int, int], int]:
    """Ticks that bring a rank's clock onto the first rank's. Ranks of one host share a clock exactly; between
    hosts the Unix time of both is all there is, good to the hosts' time synchronisation."""
    reference: dict[int, tuple[str, float]] = {}
    shifts = {}
    for ledger in ranks:
        for attempt, host, unix_s in ledger.clock_offsets:
            first_host, first_unix_s = reference.setdefault(attempt, (host, unix_s))
            apart_s = 0.0 if host == first_host else unix_s - first_unix_s
            shifts[ledger.rank, attempt] = round(apart_s * TICKS_PER_S)
    return shifts


def _last_arrivals(
    ranks: Sequence[RankLedger], shifts: dict[tuple[int, int], int]
) -> dict[tuple[int, str, int], tuple[int, int]]:
    """(moment, rank) of the last arrival at each call that at least two ranks recorded."""
    last: dict[tuple[int, str, int], tuple[int, int]] = {}
    shared: set[tuple[int, str, int]] = set()
    for ledger in ranks:
        for line in ledger.lines:
            shift = shifts.get((ledger.rank, line.attempt), 0)
            for call in line.calls:
                key = (line.attempt, call.group, call.seq)
                arrival = (call.enter + shift, ledger.rank)
                before = last.get(key)
                if before is None:
                    last[key] = arrival
                else:
                    shared.add(key)
                    last[key] = max(before, arrival)
    return {key: last[key] for key in shared}


def _split_rank(
    ledger: RankLedger,
    last: dict[tuple[int, str, int], tuple[int, int]],
    shifts: dict[tuple[int, int], int],
    late: dict[int, int],
) -> RankLedger:
    idle: list[Interval] = []
    for line in ledger.lines:
        shift = shifts.get((ledger.rank, line.attempt), 0)
        for call in line.calls:
            arrival = last.get((line.attempt, call.group, call.seq))
            if arrival is None or call.wait is None:
                continue
            start, end = max(call.wait[0], call.enter), min(call.wait[1], arrival[0] - shift)
            if end > start:
                idle.append((start, end))
                late[arrival[1]] += end - start
    if not idle:
        return ledger
    merged = _merge(idle)
    starts, ends = [start for start, _ in merged], [end for _, end in merged]
    return replace(
        ledger,
        lines=tuple(
            _recut(line, merged[bisect(ends, line.start) : bisect_left(starts, line.end)])
            for line in ledger.lines
        ),
    )


def _recut(line: Line, idle: list[Interval]) -> Line:
    """The line with the ``deliver`` time inside ``idle`` (sorted, disjoint) booked as waiting for a peer."""
    spans: list[SpanRow] = []
    at_interval = 0
    for span in line.spans:
        while at_interval < len(idle) and idle[at_interval][1] <= span.start:
            at_interval += 1
        if span.account[0] != "deliver":
            spans.append(span)
            continue
        at, i = span.start, at_interval
        while i < len(idle) and idle[i][0] < span.end:
            first, final = max(idle[i][0], at), min(idle[i][1], span.end)
            if first > at:
                spans.append(SpanRow(span.account, at, first))
            spans.append(SpanRow(PEER, first, final))
            at, i = final, i + 1
        if span.end > at:
            spans.append(SpanRow(span.account, at, span.end))
    return replace(line, spans=tuple(spans))


def _merge(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _total(parts: Iterable[dict[Account, Any]]) -> dict[Account, Any]:
    sums: dict[Account, Any] = defaultdict(int)
    for part in parts:
        for account, amount in part.items():
            sums[account] += amount
    return dict(sums)


def _order(item: tuple[Account, Any]) -> tuple[int, float, str]:
    (phase, reason), amount = item
    return PHASES.index(phase) if phase in PHASES else len(PHASES), -amount, reason

"""Where the device time went: phases, reasons, ranks, and who was waited for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.evidence import verdict
from paceline.evidence.facts import Facts
from paceline.evidence.page.bars import Part, legend, meter, stacked
from paceline.evidence.page.document import figure, section
from paceline.evidence.page.html import Html, details, join, table, tag
from paceline.evidence.page.numbers import clock, percent, seconds
from paceline.evidence.waste import EXPLAINED, phase_shares, reason_words
from paceline.ledger.accounts import RankAccounts
from paceline.ledger.plural import many
from paceline.ledger.spans import PHASES

RANKS_SHOWN = 16
LARGE = 0.001
_ALL = (*PHASES, "unattributed")


def time_section(facts: Facts) -> Html:
    """Stacked bar, table of reasons, ranks."""
    rows = facts.time_rows
    if not rows:
        return section("time", "Where the time went", tag("p", "No ledger could be read.", cls="quiet"))
    shares = phase_shares(rows)
    bar = stacked(Part(words(phase), shares[phase], phase, _reasons(rows, phase)) for phase in _ALL)
    used = [(f"{words(phase)} {percent(shares[phase])}", phase) for phase in _ALL if shares[phase] >= 0.0005]
    total = sum(r.wall_s for r in facts.ranks)
    judged = verdict.unattributed(facts)
    caption = join(
        [
            f"{clock(total)} of device time on {_devices(facts)}, each second booked once. ",
            tag("span", judged.sign, " ", judged.text, cls=judged.tone) if judged else None,
        ]
    )
    return section(
        "time",
        "Where the time went",
        figure(join([legend(used), bar, reasons_table(rows)]), caption, "measured here"),
        ranks(facts) if len(facts.ranks) > 1 else None,
    )


def words(phase: str) -> str:
    """A phase with what it mostly consists of."""
    return f"{phase} ({EXPLAINED[phase]})" if phase in EXPLAINED else phase


def reasons_table(rows: Sequence[Mapping[str, Any]]) -> Html:
    """Every account: phase, reason, seconds, share; the small ones open on demand."""
    large = [row for row in rows if row["share"] >= LARGE or row["phase"] == "unattributed"]
    small = [row for row in rows if row not in large]
    rest = None
    if small:
        total = percent(sum(row["share"] for row in small), 2)
        rest = details(
            f"{len(small)} smaller account{'s' if len(small) > 1 else ''}, {total} together", _accounts(small)
        )
    return join([_accounts(large), rest])


def _accounts(rows: Sequence[Mapping[str, Any]]) -> Html:
    cells = [
        (
            row["phase"],
            reason_words(row["phase"], row["reason"]),
            seconds(row["seconds"]),
            percent(row["share"], 2),
            meter(row["share"], row["phase"]),
        )
        for row in rows
    ]
    return table(("phase", "reason", "seconds", "share", ""), cells, numbers=(2, 3))


def ranks(facts: Facts) -> Html:
    """One thin bar a rank; of many ranks those that idled most and least."""
    chosen = sorted(_extremes(facts.ranks), key=lambda r: r.rank)
    cells: list[Html] = []
    for account in chosen:
        by_phase = _by_phase(account)
        cells.append(tag("span", f"rank {account.rank}"))
        cells.append(stacked((Part(words(p), by_phase[p], p) for p in _ALL), thin=True))
        cells.append(tag("span", f"idle {percent(by_phase['idle'])}", cls="end"))
    text = (
        f"{len(chosen)} of {many(len(facts.ranks), 'rank')}"
        if len(chosen) < len(facts.ranks)
        else "Each rank"
    )
    late = facts.split.latest_rank
    if late is None:
        told = "no rank kept the others waiting."
    else:
        others = seconds(facts.split.late_s[late])
        told = f"rank {late} was waited for most: it cost the others {others} in all."
    return figure(tag("div", *cells, cls="ranks"), f"{text}, same colours as above; {told}", "measured here")


def _by_phase(account: RankAccounts) -> dict[str, float]:
    shares = dict.fromkeys(_ALL, 0.0)
    wall = account.wall_s or 1.0
    for (phase, _), spent in account.seconds.items():
        shares[phase] += spent / wall
    shares["unattributed"] = account.unattributed_s / wall
    return shares


def _extremes(found: list[RankAccounts]) -> list[RankAccounts]:
    if len(found) <= RANKS_SHOWN:
        return found
    by_idle = sorted(found, key=lambda r: _by_phase(r)["idle"])
    return by_idle[: RANKS_SHOWN // 2] + by_idle[-RANKS_SHOWN // 2 :]


def _reasons(rows: Iterable[Mapping[str, Any]], phase: str) -> str:
    return ", ".join(
        f"{reason_words(phase, r['reason'])} {percent(r['share'])}"
        for r in rows
        if r["phase"] == phase and r["reason"]
    )


def _devices(facts: Facts) -> str:
    return "one rank" if len(facts.ranks) == 1 else f"{len(facts.ranks)} ranks"

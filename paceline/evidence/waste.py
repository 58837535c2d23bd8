"""Where the device time of a run went, in the words of the console's ``time`` line (interface §10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.ledger.accounts import where_time_went
from paceline.ledger.folder import RunFolder
from paceline.ledger.spans import PHASES

# What a phase mostly consists of, for readers who do not know the five words yet.
EXPLAINED = {"update": "optimizer", "deliver": "communication", "recover": "checkpoint"}
LINE_ORDER = ("plan", "compute", "update", "deliver", "recover", "idle")
USEFUL = ("compute", "update")
REASONS = {  # accounts whose short names a newcomer may not know
    ("idle", "peer"): "waiting for a late rank",
    ("idle", "data"): "waiting for data",
    ("idle", "host"): "gaps of the host",
    ("idle", "start-up"): "start-up",
    ("idle", "ledger"): "keeping the ledger",
    ("recover", "checkpoint"): "saving checkpoints",
    ("compute", "evaluate"): "evaluation",
    ("unattributed", ""): "in no account",
}
WORTH_A_WORD = 0.0005  # smaller shares print as 0.0


def phase_shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Share of all device-seconds by phase, every phase and ``unattributed`` present."""
    shares = dict.fromkeys((*PHASES, "unattributed"), 0.0)
    for row in rows:
        shares[row["phase"]] = shares.get(row["phase"], 0.0) + row["share"]
    return shares


def waste_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Accounts that bring no step nearer (everything but compute and update), the largest first."""
    return sorted((r for r in rows if r["phase"] not in USEFUL), key=lambda r: -r["share"])


def reason_words(phase: str, reason: str) -> str:
    """The account's reason in words."""
    return REASONS.get((phase, reason), reason)


def time_line(source: RunFolder | Sequence[Mapping[str, Any]]) -> str:
    """``compute 91.2 · update (optimizer) 3.9 · … · idle 3.1 % (data 1.0, host 2.1)``; "" without a ledger.

    Args:
        source: a run, or the rows of :func:`~paceline.ledger.accounts.where_time_went`.
    """
    rows = where_time_went(source) if isinstance(source, RunFolder) else list(source)
    if not rows:
        return ""
    shares = phase_shares(rows)
    parts = []
    for phase in LINE_ORDER:
        if phase == "plan" and shares[phase] < WORTH_A_WORD:
            continue
        name = f"{phase} ({EXPLAINED[phase]})" if phase in EXPLAINED else phase
        parts.append(f"{name} {100 * shares[phase]:.1f}")
    parts[-1] += " %"
    reasons = [r for r in rows if r["phase"] == "idle" and r["share"] >= WORTH_A_WORD]
    if reasons:
        words = ", ".join(f"{r['reason']} {100 * r['share']:.1f}" for r in reasons)
        parts[-1] += f" ({words})"
    if shares["unattributed"] >= WORTH_A_WORD:
        parts.append(f"unattributed {100 * shares['unattributed']:.1f}")
    return " · ".join(parts)

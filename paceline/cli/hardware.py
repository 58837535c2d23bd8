"""``plan --cluster aws``: the table of hardware, above the plan for what was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from paceline.cli.tables import table
from paceline.plan.digits import amount, money, three

if TYPE_CHECKING:
    from paceline.plan.hardware.choose import Tried
    from paceline.plan.hardware.search import Hardware

SHOWN = 10
PARTS = ("rent", "egress", "initial", "power")
FEW = ("fits", "too dear", "pruned")


def hardware_text(hardware: Hardware, width: int) -> str:
    """One row for the best of each offer, the chosen one's other numbers of hosts, and what became of the rest."""
    shown = _best_of_each(hardware.rows)
    parts = [name for name in PARTS if any(name in dict(row.usd_parts) for row in shown)]
    hours = "HOURS" if hardware.known else "H/MTOK"
    usd = "$" if hardware.known else "$/MTOK"
    head = ("SHAPE", "HOSTS", hours, usd, "VERDICT", "LAYOUT", *(name.upper() for name in parts))
    right = ("HOSTS", hours, usd, *(name.upper() for name in parts))
    cells = [_cells(row, parts) for row in shown[:SHOWN]]
    lines = [f"hardware {hardware.menu}, by {hardware.objective}"]
    lines.append(table(head, cells, width=width, right=right, keep=5))
    for text in (_ladder(hardware), _rest(hardware, shown[:SHOWN]), *hardware.notes):
        lines += wrap(text, width - 1, initial_indent=" ", subsequent_indent="   ", break_long_words=False)
    return "\n".join(lines) + "\n\n"


def _best_of_each(rows: Sequence[Tried]) -> list[Tried]:
    seen: dict[str, Tried] = {}
    for row in rows:
        if row.word != "fewer do":
            seen.setdefault(row.offer, row)
    return list(seen.values())


def _cells(row: Tried, parts: Sequence[str]) -> tuple[object, ...]:
    least = "≥ " if not row.layout else ""
    own = dict(row.usd_parts)
    told = row.more if row.word in FEW and row.more else f"{row.word}: {row.more}" if row.more else row.word
    return (
        row.offer.rpartition("/")[2],  # a cluster file by its name
        row.hosts,
        f"{least}{three(row.hours)}" if row.hours else None,
        None if row.usd is None else f"{least}{amount(row.usd)}",
        told,
        row.layout.partition(",mbs")[0] or None,
        *(None if name not in own else amount(own[name]) for name in parts),
    )


def _ladder(hardware: Hardware) -> str:
    """What the chosen offer costs by its number of hosts: where a token turns dearer."""
    rungs = [row for row in hardware.rows if row.offer == hardware.chosen.offer and row.layout and row.usd]
    if len(rungs) < 2:
        return ""
    told = [f"{row.hosts}: {three(row.hours)} h {money(row.usd or 0.0)}" for row in sorted(rungs, key=_hosts)]
    return f"by hosts  {' · '.join(told)}"


def _hosts(row: Tried) -> int:
    return row.hosts


def _rest(hardware: Hardware, shown: Sequence[Tried]) -> str:
    """How many were tried, and what they came to."""
    counts: dict[str, int] = {}
    for row in hardware.rows:
        counts[row.word] = counts.get(row.word, 0) + 1
    counts.pop("chosen", None)
    told = " · ".join(f"{n} {word}" for word, n in sorted(counts.items(), key=lambda item: -item[1]))
    total, hidden = len(hardware.rows), len(hardware.rows) - len(shown)
    text = f"{total} tried, {hardware.searched} of them searched: 1 chosen" + (f" · {told}" if told else "")
    return text + ("  (all: --json)" if hidden else "")

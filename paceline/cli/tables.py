"""Tables for terminals: right-hand columns are dropped when the width does not hold them (interface §10)."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from paceline.ledger.outcome import printable

if TYPE_CHECKING:
    from paceline.job.describe import KeyRow

GAP = "  "


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    width: int,
    right: Sequence[str] = (),
    keep: int = 2,
) -> str:
    """Aligned columns.

    Args:
        head: the columns' names. rows: their cells; None shows as an en dash.
        width: characters that a line may have; columns go from the right until it fits.
        right: names of the columns of numbers, aligned to the right.
        keep: columns that are never dropped.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(name), *(len(row[i]) for row in cells), 0) for i, name in enumerate(head)]
    count = len(head)
    while count > keep and 1 + sum(widths[:count]) + len(GAP) * (count - 1) > width:
        count -= 1
    lines = []
    for row in [list(head), *cells]:
        parts = [
            text.rjust(size) if name in right else text.ljust(size)
            for text, size, name in zip(row[:count], widths, head, strict=False)
        ]
        lines.append((" " + GAP.join(parts)).rstrip())
    return "\n".join(lines)


def facts(pairs: Sequence[tuple[str, object]]) -> str:
    """Lines of ``name  value``; pairs without a value are left out."""
    shown = [(printable(name), printable(str(value))) for name, value in pairs if value not in (None, "")]
    size = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name:<{size}}  {value}" for name, value in shown)


def bytes_text(count: float | None) -> str:
    """``121 MB``; decimal, as disks are sold."""
    if count is None:
        return "–"
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 99.95 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def ago(seconds: float) -> str:
    """``2 min ago``."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            whole = int(seconds // size)
            return f"{whole} {'day' if unit == 'days' and whole == 1 else unit} ago"
    return f"{max(0, int(seconds))} s ago"


def _cell(value: object) -> str:
    return "–" if value is None or value == "" else printable(str(value))


def keys_text(rows: Sequence[KeyRow], width: int) -> str:
    """The keys of the job file by table; one key alone shows its values too."""
    lines: list[str] = []
    shown = ""
    for row in rows:
        table_name = row.key.rpartition(".")[0]
        if table_name != shown:
            lines += ["", f"[{table_name}]"]
            shown = table_name
        later = f" (not in this version: arrives {row.arrives})" if row.arrives else ""
        lines.append(f"  {row.key:<32} {row.form:<22} {row.default}".rstrip() + later)
        lines += [
            f"    {line}" for line in wrap(row.meaning + (f" ({row.unit})" if row.unit else ""), width - 4)
        ]
        if len(rows) == 1 and row.values:
            lines += [f"    {line}" for line in wrap("values: " + " · ".join(row.values), width - 4)]
    return "\n".join(lines).strip("\n")

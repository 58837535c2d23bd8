"""A comparison for the terminal: results in columns, then differences, then causes.

Reads the comparison as JSON, so that a stored one prints too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.evidence.page.numbers import THIN, count, figures, grouped, percent
from paceline.ledger.spans import PHASES

_SHOWN = 16  # differences; --json has all


def text(comparison: Mapping[str, Any], width: int = 100) -> str:
    """Several tables of plain text, at most ``width`` columns; right-hand columns are dropped to fit."""
    parts = [_results(comparison, width), _differences(comparison, width), _causes(comparison, width)]
    return "\n\n".join(part for part in parts if part).replace(THIN, " ")


def _results(c: Mapping[str, Any], width: int) -> str:
    kind = c["runs"][0]["loss_kind"]
    at = f" at {count(c['at_tokens'])} tokens" if c["at_tokens"] is not None else ""
    head = [
        "RUN",
        "LOSS",
        "TOK/S",
        "GIB",
        "$",
        "LAYOUT",
        "STATE",
        "STEP",
        *(p.upper() for p in PHASES),
        "NO ACCOUNT",
    ]
    rows = []
    for run in c["runs"]:
        shares = [percent(run["shares"].get(p)) if run["shares"] else "–" for p in (*PHASES, "unattributed")]
        cells = [
            run["name"],
            figures(run["loss_at"], 4),
            grouped(run["tokens_per_s"]),
            figures(run["memory_gib"]),
        ]
        cells += [figures(run["cost_usd"]), run["layout"] or "–", run["state"], grouped(run["step"]), *shares]
        rows.append(cells)
    if c["ranked"]:
        order = f"lowest {kind} loss{at} first: {c['order']}"
    else:
        order = f"not ranked: {c['refusal']}"
    return f"{columns([head, *rows], width, right=(1, 2, 3, 4, 7, *range(8, 16)))}\n{order}"


def _differences(c: Mapping[str, Any], width: int) -> str:
    if not c["differences"]:
        return "no difference in job, data or environment"
    rows = [["DIFFERS", "BELONGS TO", *(run["name"] for run in c["runs"])]]
    for d in c["differences"][:_SHOWN]:
        rows.append([d["key"], d["cause"], *(_short(v) for v in d["values"])])
    more = len(c["differences"]) - _SHOWN
    return columns(rows, width) + (f"\n… and {more} more (all: --json)" if more > 0 else "")


def _causes(c: Mapping[str, Any], width: int) -> str:
    if not c["attributions"]:
        return "no result differs by more than what runs of the same job differ by"
    lines = []
    for a in c["attributions"]:
        ratio = (
            f"{figures(a['low'], 4)} to {figures(a['high'], 4)} ({100 * (a['high'] / a['low'] - 1):.1f} %)"
        )
        keys = ", ".join(a["because"][:4]) + (" …" if len(a["because"]) > 4 else "")
        cause = f"{a['cause']}: {keys}" if keys and a["cause"] != "unexplained" else a["cause"]
        if a["cause"] == "unexplained" and keys:
            cause = f"unexplained: several things differ at once ({keys})"
        lines.append(_indented(f"{a['result']:<22}{ratio:<30}  ", cause, width))
        if a["settle"]:
            lines.append(_indented(f"{'':<22}settle: ", a["settle"], width))
    return "\n".join(lines)


def columns(rows: Sequence[Sequence[str]], width: int, right: Sequence[int] = ()) -> str:
    """Aligned columns; those that would pass ``width`` are dropped from the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    used, kept = 0, 0
    for i, w in enumerate(widths):
        used += w + (2 if i else 0)
        if used > width and i >= 2:
            break
        kept = i + 1
    lines = []
    for row in rows:
        cells = [row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i]) for i in range(kept)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _short(value: Any, most: int = 24) -> str:
    shown = "–" if value in (None, "") else str(value)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _indented(head: str, body: str, width: int) -> str:
    """``head`` and ``body``, broken at words under the end of the head: no command is ever cut off."""
    return textwrap.fill(
        body,
        max(width, len(head) + 24),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )

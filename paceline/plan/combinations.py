"""Layouts × features for a proof of many: what may be combined, and the layout of a combination.

A row names a degree for each axis, the kinds that belong to it, how often a rank accumulates, and how documents are
packed. What the rule book refuses is no row; what has not arrived in this version is one, and is told as not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.ledger.outcome import Exit
from paceline.plan.grammar import KINDS, OPTIONS
from paceline.plan.layout import Layout
from paceline.plan.rules import RULES, Facts

DEGREES = (1, 2, 3, 4)
PACKINGS = ("concat", "masked", "none")
MUST: tuple[dict[str, Any], ...] = (
    {"fsdp": 2, "tp": 2, "pp": 2},
    {"fsdp": 2, "ep": 2, "pp": 2},
    {"fsdp": 2, "tp": 2, "cp": 2},
    {"dp": 2, "fsdp": 2, "tp": 2, "pp": 2},
    {"tp": 2, "pp": 2, "cp": 2, "ep": 2},
)
"""Three and four axes at once, whatever the pairs need (issue 3)."""


def factors(ranks: int, *, cuda: bool = False) -> dict[str, Sequence[Any]]:
    """Name → values, the plain one first, for layouts of up to ``ranks`` ranks."""
    fits = tuple(n for n in DEGREES if n <= ranks)
    powers = tuple(n for n in fits if n != 3)
    return {
        "dp": fits,
        "fsdp": fits,
        "zero": KINDS["fsdp"],
        "tp": powers,
        "pp": powers,
        "schedule": KINDS["pp"],
        "cp": powers,
        "cp_kind": KINDS["cp"] if cuda else tuple(k for k in KINDS["cp"] if k != "ring"),
        "ep": powers,
        "etp": (1, *(n for n in powers if n == 2)),
        "accumulate": (2, 1, 3),
        "recompute": OPTIONS["recompute"],
        "compile": OPTIONS["compile"],
        "packing": PACKINGS,
    }


def layout_of(row: Mapping[str, Any], facts: Facts) -> Layout | None:
    """The layout of a row on a model: with a micro-batch that makes ranks accumulate about as often as the row says
    and that the rule book takes; None where it takes none, or where the row says something about an axis that is
    not there."""
    names = [name for name in row if name not in ("accumulate", "packing", "family")]
    bare = Layout(**{name: row[name] for name in names})
    if any(getattr(bare, name) != row[name] for name in names):
        return None
    if refused(bare, facts):
        return None
    rows = bare.data_rows(facts.global_batch)
    count = row.get("accumulate", 1) * (bare.stages if bare.pp > 1 else 1)
    wanted = max(1, -(-rows // count))
    for mbs in sorted(range(1, rows + 1), key=lambda n: (abs(n - wanted), n)):
        layout = bare.replace(mbs=mbs)
        if not refused(layout, facts):
            return layout
    return None


def refused(layout: Layout, facts: Facts) -> str:
    """Why the rule book refuses a combination for good; empty when it does not, or only for this version."""
    return next(
        (m for rule in RULES if rule.exit_code == Exit.RULE and (m := rule.broken(layout, facts))), ""
    )


def absent(layout: Layout, facts: Facts) -> str:
    """What of the layout is not in this version; empty when all is."""
    return next(
        (m for rule in RULES if rule.exit_code != Exit.RULE and (m := rule.broken(layout, facts))), ""
    )


def allowed(
    ranks: int, facts_of: Callable[[Mapping[str, Any]], Facts]
) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a whole row may be, for ``covering``.

    Args:
        facts_of: the model of a row (rows may differ in it).
    """

    known: dict[tuple[Any, ...], bool] = {}

    def may(row: Mapping[str, Any]) -> bool:
        items = tuple(sorted(row.items(), key=lambda item: item[0]))
        if items not in known:
            known[items] = judge(row)
        return known[items]

    def judge(row: Mapping[str, Any]) -> bool:
        world = row["dp"] * row["fsdp"] * row["tp"] * row["pp"] * row["cp"]
        if world > ranks or (row["compile"] == "on" and world > 2):  # compiling keeps a core busy a minute
            return False
        return layout_of(row, facts_of(row)) is not None

    return may

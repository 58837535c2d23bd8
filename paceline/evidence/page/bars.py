"""Stacked bars: shares of a whole as boxes with their names in words: colour alone tells nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.evidence.page.html import Html, tag
from paceline.evidence.page.numbers import percent

NAMED_FROM = 0.085  # a narrower box cannot hold a word


@dataclass(frozen=True)
class Part:
    """One box: its share of the bar, colour class, and words."""

    name: str
    share: float
    ink: str
    note: str = ""


def stacked(parts: Iterable[Part], *, thin: bool = False) -> Html:
    """One bar; parts below a thousandth are not drawn (the table beside it has them)."""
    boxes = [
        tag(
            "span",
            tag("b", part.name) if part.share >= NAMED_FROM and not thin else None,
            cls=f"box {part.ink}",
            style=f"flex-grow:{part.share:.5f}",
            title=f"{part.name} {percent(part.share)}{' · ' + part.note if part.note else ''}",
        )
        for part in parts
        if part.share >= 0.001
    ]
    return tag("div", *boxes, cls="stack thin" if thin else "stack")


def legend(names: Sequence[tuple[str, str]]) -> Html:
    """Colour keys: (name, colour class)."""
    return tag("ul", *(tag("li", tag("i", cls=f"key-box {ink}"), name) for name, ink in names), cls="legend")


def meter(share: float, ink: str) -> Html:
    """A small bar from 0 to 1 for a table's cell."""
    width = max(0.0, min(1.0, share))
    return tag("span", tag("span", cls=ink, style=f"width:{100 * width:.2f}%"), cls="meter")

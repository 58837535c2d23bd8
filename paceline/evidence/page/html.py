"""HTML from Python values. A text is escaped unless this module made it: no name can inject anything."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.evidence.page.numbers import grouped

VOID = ("br", "hr", "meta", "line", "rect", "circle", "path", "polyline")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Html:
    """The value as HTML: itself when it is HTML, else escaped."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def join(parts: Iterable[object], separator: str = "") -> Html:
    """Parts, escaped where they need it; ``None`` is left out."""
    return Html(escape(separator).join(escape(p) for p in parts if p is not None))


def tag(name: str, *children: object, cls: str = "", **attributes: object) -> Html:
    """``tag("td", "a < b", cls="number", data_x=3)``; ``None`` children and attributes are left out."""
    given: dict[str, object] = {"class": cls or None, **attributes}
    text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in given.items()
        if value is not None
    )
    if name in VOID and not children:
        return Html(f"<{name}{text}/>")
    return Html(f"<{name}{text}>{join(children)}</{name}>")


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Sequence[int] = (),
    cls: str = "",
    mark: int | None = None,
) -> Html:
    """A table that scrolls sideways on a narrow screen.

    ``numbers`` are the right-aligned columns; ``mark`` is the row that stands out; ``cls``: ``snug`` is as
    narrow as its content, ``wraps`` may break its numbers.
    """

    def cell(kind: str, i: int, value: object) -> Html:
        return tag(kind, value, cls="number" if i in numbers else "")

    body = [
        tag("tr", *(cell("td", i, value) for i, value in enumerate(row)), cls="chosen" if n == mark else "")
        for n, row in enumerate(rows)
    ]
    header = tag("thead", tag("tr", *(cell("th", i, name) for i, name in enumerate(head))))
    return tag("div", tag("table", header, tag("tbody", *body), cls=cls), cls="scroll", tabindex=0)


def words_of(layout: object) -> Html:
    """A layout as code; a long one may break after its commas, so that the columns beside it stay on the page."""
    text = str(layout)
    if len(text) <= SHORT_LAYOUT:
        return tag("code", text)
    return tag("code", join(text.split(","), Html(",<wbr/>")), cls="breaks")


SHORT_LAYOUT = 26


def facts_list(pairs: Iterable[tuple[object, object]]) -> Html:
    """Term and value in two columns."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs), cls="facts")


def details(summary: object, *content: object, open_: bool = False) -> Html:
    """A part that opens on demand."""
    return tag("details", tag("summary", summary), *content, open="" if open_ else None)


def value_html(value: Any, depth: int = 0) -> Html:
    """Any JSON value, readable: tables as lists of terms, lists as lists, the rest as text."""
    if isinstance(value, Mapping):
        if not value:
            return tag("span", "none", cls="quiet")
        return facts_list((name, value_html(inner, depth + 1)) for name, inner in value.items())
    if isinstance(value, list | tuple):
        if not value:
            return tag("span", "none", cls="quiet")
        if all(not isinstance(v, Mapping | list | tuple) for v in value) and len(value) <= 8:
            return join([value_html(v, depth + 1) for v in value], ", ")
        return tag("ul", *(tag("li", value_html(v, depth + 1)) for v in value), cls="values")
    if isinstance(value, bool):
        return escape("yes" if value else "no")
    if value is None or value == "":
        return tag("span", "–", cls="quiet")
    if isinstance(value, int):
        return escape(grouped(value) if abs(value) >= 10_000 else value)
    if isinstance(value, float):
        return escape(f"{value:.6g}")
    return escape(value)

"""The page around the sections: one file, nothing loaded from anywhere, readable without JavaScript."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from paceline.evidence.page.html import Html, escape, join, tag

KINDS = ("measured here", "emulated link", "fake cluster", "calculated", "catalogue", "published elsewhere")


POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def kind(evidence: str) -> Html:
    """The badge that says what stands behind a figure (DESIGN: kind of evidence)."""
    return tag("span", evidence, cls=f"kind {evidence.split()[0]}")


def section(anchor: str, title: str, *content: object, lead: object = None) -> Html:
    """A part of the page with a heading that can be linked to."""
    return tag(
        "section", tag("h2", title), tag("p", lead, cls="quiet") if lead else None, *content, id=anchor
    )


def figure(content: Html, caption: object, evidence: str) -> Html:
    """A picture in its card, with caption and kind of evidence."""
    return tag("figure", content, tag("figcaption", kind(evidence), " ", caption), cls="card")


def tile(name: str, value: object, note: object = "", evidence: str = "") -> Html:
    """One headline figure."""
    return tag(
        "div",
        tag("div", name, cls="name"),
        tag("div", value, cls="figure"),
        tag("div", note, cls="note") if note else None,
        tag("div", kind(evidence), cls="stands") if evidence else None,
        cls="tile",
    )


def page(title: str, head: Html, sections: Sequence[tuple[str, str, Html]], foot: Html) -> str:
    """The whole document; ``sections`` are (anchor, word in the navigation, HTML)."""
    links = (tag("a", word, href=f"#{anchor}") for anchor, word, _ in sections)
    body = join(
        [
            tag("header", head, tag("nav", *links, aria_label="sections"), cls="top"),
            tag("main", *(content for _, _, content in sections)),
            tag("footer", foot),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # The policy holds the page to its promise: even an injected address could not be fetched.
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{_asset('style.css')}</style>\n</head>\n<body>\n{body}\n"
        f"<script>\n{_asset('hover.js')}</script>\n</body>\n</html>\n"
    )

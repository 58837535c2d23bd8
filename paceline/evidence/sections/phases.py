"""The five phase records, side by side with what nobody stated, and the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any

from paceline.evidence.facts import Facts
from paceline.evidence.page.document import kind, section
from paceline.evidence.page.html import Html, details, facts_list, join, table, tag, value_html
from paceline.evidence.page.numbers import grouped, size
from paceline.ledger.records import FIELDS, RECORDED, gaps

QUESTIONS = {
    "plan": "who does what, and whether to distribute at all",
    "compute": "one device's forward and backward",
    "deliver": "the right tensor on the right rank",
    "update": "when a gradient becomes a weight",
    "recover": "what survives a failure",
}


def phases_section(facts: Facts) -> Html:
    """One record a phase; a field that nobody stated shows as a gap."""
    parts = [_record(n, record) for n, record in enumerate(facts.records, start=1)]
    missing = sum(len(gaps(record)) for record in facts.records)
    total = len(FIELDS) * len(RECORDED)
    lead = f"Each phase keeps a record of {len(FIELDS)} fields. {missing} of {total} are not stated."
    return section("phases", "The five phases", tag("div", *parts, cls="card"), lead=lead)


def _record(n: int, record: Mapping[str, Any] | None) -> Html:
    phase = RECORDED[n - 1]
    absent = gaps(record)
    if record is None:
        state = tag("span", "no record", cls="gap")
        body = tag(
            "p",
            "This phase left no record: the run ended before it, or its file cannot be read.",
            cls="quiet",
        )
    else:
        state = (
            tag("span", f"{len(absent)} not stated", cls="gap")
            if absent
            else tag("span", "complete", cls="good full")
        )
        pairs = [
            (name, tag("span", "not stated", cls="gap") if name in absent else value_html(record[name]))
            for name in FIELDS
        ]
        body = facts_list(pairs)
    decided = decision_line(record)
    title = join(
        [
            tag("span", n, cls="number"),
            " ",
            tag("b", phase),
            " ",
            tag("span", QUESTIONS[phase], cls="quiet"),
            " ",
            state,
            tag("span", decided, cls="decided") if decided else None,
        ]
    )
    return details(title, body)


def decision_line(record: Mapping[str, Any] | None, most: int = 160) -> str:
    """What the phase decided, short enough for a heading."""
    decision = (record or {}).get("decision")
    if isinstance(decision, Mapping):
        plain = ((k, v) for k, v in decision.items() if isinstance(v, str | int | float) and v != "")
        text = " · ".join(f"{k.replace('_', ' ')} {_word(v)}" for k, v in plain)
    else:
        text = "" if decision in (None, "not stated") else str(decision)
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _word(value: str | int | float) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def checkpoints_section(facts: Facts) -> Html:
    """What can be resumed from, and what happened on the way."""
    rows = [
        (
            grouped(step),
            tag("code", path.name),
            size(n_bytes),
            "latest" if path.name == facts.latest_checkpoint else "",
        )
        for step, path, n_bytes in facts.checkpoints
    ]
    kept = (
        table(("step", "folder", "size", ""), rows, numbers=(0, 2), cls="snug")
        if rows
        else tag("p", "No checkpoint is in the run's folder.", cls="quiet")
    )
    events = [row for row in facts.events if row.get("event") != "checkpoint"]
    told = None
    if events:
        lines = [
            (grouped(e.get("step")), str(e.get("event", "")), value_html(e.get("detail", ""))) for e in events
        ]
        told = join(
            [tag("h3", "Events"), table(("step", "event", "detail"), lines, numbers=(0,), cls="snug")]
        )
    resume = tag(
        "p",
        "Continue: ",
        tag("code", f"paceline train {quote(str(facts.folder.path))} --resume"),
        cls="caption",
    )
    return section(
        "checkpoints",
        "Checkpoints and events",
        tag(
            "div",
            kept,
            told,
            tag("p", kind("measured here"), cls="caption"),
            resume if rows else None,
            cls="card",
        ),
    )

"""``plan.html``: the planner's whole answer on one page, every rejection included."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.evidence.facts import finite, is_number
from paceline.evidence.page.document import page, section, tile
from paceline.evidence.page.html import Html, facts_list, join, tag, value_html
from paceline.evidence.page.numbers import clock, count, figures, grouped, percent, seconds, size
from paceline.evidence.sections.decision import (
    families_section,
    picture_section,
    sensitivity_section,
    tied_section,
)
from paceline.evidence.sections.head import layout_words, unit
from paceline.evidence.sections.plan import candidates, decision_words, plan_parts
from paceline.ledger.atomic import write_text

RECORD = (
    ("tied", "Tied", tied_section),
    ("families", "Families", families_section),
    ("sensitivity", "Sensitivity", sensitivity_section),
)


def write_plan_page(plan: Mapping[str, Any], path: Path | str) -> Path:
    """Writes the page for a plan as ``Plan.to_dict`` gives it, and returns its path."""
    title = f"Plan for {plan.get('job', 'a job')}"
    parts = [("answer", "Answer", _answer(plan))]
    picture = picture_section(plan)
    if picture is not None:
        parts.append(("picture", "Time and memory", picture))
    scopes = plan.get("scopes")
    if isinstance(scopes, Mapping) and len(scopes) > 1:
        rows = {"best": {}, "candidates": [s for s in scopes.values() if isinstance(s, Mapping)]}
        told = tag("div", candidates(rows), cls="card")
        lead = "The best layout of each scope: a device, one host, a cluster."
        parts.append(("scopes", "Scopes", section("scopes", "By scope", told, lead=lead)))
    parts.append(("plan", "Alternatives", section("plan", "Alternatives", *plan_parts(plan))))
    for anchor, word, build in RECORD:
        made = build(plan)
        if made is not None:
            parts.append((anchor, word, made))
    if plan.get("what_if"):
        asked = tag("div", value_html(plan["what_if"]), cls="card")
        parts.append(("what-if", "What if", section("what-if", "What if", asked)))
    parts.append(("inputs", "Inputs", _inputs(plan)))
    foot = tag(
        "div", tag("p", "Written by ", tag("code", "paceline plan"), ". Every figure here is calculated.")
    )
    write_text(path, page(f"{title} · Paceline", _head(title, plan), parts, foot))
    return Path(path)


def _head(title: str, plan: Mapping[str, Any]) -> Html:
    best = plan.get("best") or {}
    bounds, hours = finite(best.get("step_s") or []), finite(best.get("hours") or [])
    tiles = [tile("layout", layout_words(str(best.get("layout", ""))), _devices(best))]
    if len(bounds) == 3:
        interval = f"{figures(bounds[0])}–{figures(bounds[2])}, nine in ten"
        tiles.append(tile("a step", unit(figures(bounds[1]), "s"), interval, "calculated"))
    if len(hours) == 3:
        tiles.append(
            tile("the run", clock(3600 * hours[1]), f"{grouped(plan.get('steps'))} steps", "calculated")
        )
    rate, mfu = best.get("tokens_per_s"), best.get("mfu")
    if is_number(rate):
        note = f"MFU {percent(mfu, 0)}" if is_number(mfu) and mfu else ""
        tiles.append(tile("tokens a second", grouped(rate), note, "calculated"))
    memory = finite(best.get("memory_gib") or [])
    if memory:
        note = f"{percent(best.get('p_oom'))} risk of running out" if is_number(best.get("p_oom")) else ""
        tiles.append(tile("memory", unit(figures(memory[-1]), "GiB"), note, "calculated"))
    if is_number(best.get("usd")):
        tiles.append(tile("cost", f"${best['usd']:,.2f}", "", "calculated"))
    return join(
        [
            tag("p", f"Paceline · plan · {plan.get('cluster', '')}", cls="brand"),
            tag("h1", title),
            tag("p", "→ ", _verdict(plan), cls="verdict good"),
            tag("p", str(plan.get("reason") or ""), cls="lead"),
            tag("div", *tiles, cls="tiles"),
        ]
    )


def _answer(plan: Mapping[str, Any]) -> Html:
    best = plan.get("best") or {}
    terms = best.get("terms") or {}
    shown = {k: v for k, v in terms.items() if is_number(v)}
    body = tag("p", "The planner gave no terms.", cls="quiet")
    if shown:
        body = facts_list((_term_name(name), _term(name, value)) for name, value in shown.items())
    return section(
        "answer",
        "The answer",
        tag("div", tag("h3", "What a step consists of"), body, cls="card"),
        lead=decision_words(plan),
    )


def _inputs(plan: Mapping[str, Any]) -> Html:
    model = plan.get("model") if isinstance(plan.get("model"), Mapping) else {}
    parameters = (model or {}).get("parameters")
    pairs = [
        (
            "model",
            join(
                [
                    str((model or {}).get("name", "–")),
                    f", {count(parameters)} parameters" if parameters else "",
                ]
            ),
        ),
        ("FLOPs per token", count((model or {}).get("flops_per_token"))),
        ("convention", str((model or {}).get("flops_convention", "–"))),
        ("cluster", str(plan.get("cluster", "–"))),
        ("precision", str(plan.get("precision", "–"))),
        ("tokens a step", grouped(plan.get("tokens_per_step"))),
        ("objective", str(plan.get("objective", "–"))),
        ("disk", value_html({k: v if k == "kept" else size(v) for k, v in (plan.get("disk") or {}).items()})),
        ("machine measured", str(plan.get("measured_at") or "not measured: catalogue")),
    ]
    rest = plan.get("inputs") if isinstance(plan.get("inputs"), Mapping) else {}
    pairs += [(name.replace("_", " "), value_html(value)) for name, value in (rest or {}).items()]
    return section("inputs", "Inputs", tag("div", facts_list(pairs), cls="card"))


def _term_name(name: str) -> str:
    return name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")


def _term(name: str, value: float) -> str:
    return size(value) if name.endswith("bytes") else seconds(value)


def _verdict(plan: Mapping[str, Any]) -> str:
    layout = (plan.get("best") or {}).get("layout", "?")
    return f"distribute: {layout}" if plan.get("distribute") else f"stay on one device: {layout}"


def _devices(best: Mapping[str, Any]) -> str:
    n = best.get("devices")
    return "" if not is_number(n) else ("1 device" if n == 1 else f"{n} devices")

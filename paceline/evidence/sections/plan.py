"""The plan: what was chosen and why, what it promised, what was measured, and every alternative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.evidence import verdict
from paceline.evidence.facts import Facts, finite, is_number
from paceline.evidence.page.document import kind, section
from paceline.evidence.page.html import Html, details, escape, join, table, tag, words_of
from paceline.evidence.page.numbers import figures, grouped, percent

REJECTED_SHOWN = 8
_TABLE_HEAD = ("", "layout", "step s", "90 %", "tokens/s", "MFU", "GiB", "$", "verdict")


def plan_section(facts: Facts) -> Html:
    """Chosen layout, promise against measurement, candidates, rejections."""
    plan = facts.plan
    if not plan:
        gap = tag("p", "No plan was recorded.", cls="gap")
        return section("plan", "The plan", gap)
    return section(
        "plan", "The plan", against_measurement(facts), *plan_parts(plan), lead=decision_words(plan)
    )


def decision_words(plan: Mapping[str, Any]) -> Html:
    """The chosen layout and the planner's reason."""
    best = plan.get("best") or {}
    reason = str(plan.get("reason") or "")
    return join(["Chosen: ", tag("code", best.get("layout", "?")), f" – {reason}" if reason else ""])


def against_measurement(facts: Facts) -> Html:
    """What the plan promised beside what the run measured."""
    best = facts.plan.get("best") or {}
    judged = verdict.prediction(facts, best.get("step_s") or [])
    rows: list[Sequence[object]] = []
    times = facts.step_times
    bounds = finite(best.get("step_s") or [])
    if len(bounds) == 3:
        rows.append(
            (
                "step, seconds",
                f"{figures(bounds[1])} ({figures(bounds[0])}–{figures(bounds[2])})",
                f"{figures(times.p50)} (p95 {figures(times.p95)})" if times else "–",
                ratio(times.p50 if times else None, bounds[1]),
            )
        )
    for name, predicted, measured, show in (
        ("tokens a second", best.get("tokens_per_s"), facts.median("tokens_per_s"), grouped),
        ("memory of the worst rank, GiB", _memory(best), facts.peak("memory_gib"), figures),
        ("MFU", best.get("mfu") or None, facts.median("mfu"), percent),
    ):
        if is_number(predicted):
            rows.append((name, show(predicted), show(measured), ratio(measured, predicted)))
    if not rows:
        return tag("p", "The plan made no prediction.", cls="gap")
    evidence = str(best.get("kind_of_evidence") or "calculated")
    return tag(
        "div",
        tag("p", judged.sign, " ", judged.text, cls=judged.tone) if judged else None,
        table(("", "predicted", "measured", "ratio"), rows, numbers=(1, 2, 3), cls="wraps"),
        tag("p", kind(evidence), " predicted · ", kind("measured here"), " measured", cls="caption"),
        cls="card",
    )


def plan_parts(plan: Mapping[str, Any]) -> list[Html]:
    """Candidates, rejections, what would change the answer, and what was assumed."""
    parts = [tag("div", tag("h3", "Candidates"), candidates(plan), cls="card")]
    if plan.get("rejected"):
        parts.append(tag("div", rejections(plan), cls="card"))
    lists = [
        ("What would change the answer", plan.get("crossovers")),
        ("Assumed, not measured", plan.get("assumed")),
        ("The shortcut: the same devices, plain dp", [plan["shortcut"]] if plan.get("shortcut") else None),
    ]
    told = [
        (tag("h3", name), tag("ul", *(tag("li", item) for item in items)))
        for name, items in lists
        if isinstance(items, Sequence) and not isinstance(items, str) and items
    ]
    if told:
        parts.append(tag("div", *(part for pair in told for part in pair), cls="card notes"))
    return parts


def candidates(plan: Mapping[str, Any]) -> Html:
    """The layouts that fit, best first, as interface §10 shows them in the terminal."""
    chosen = str((plan.get("best") or {}).get("layout"))
    found = [c for c in plan.get("candidates") or [] if isinstance(c, Mapping)]
    rows: list[Sequence[object]] = []
    marked: int | None = None
    for i, c in enumerate(found, start=1):
        low, mid, high = (finite(c.get("step_s") or []) + [None, None, None])[:3]
        usd = c.get("usd")
        rows.append(
            (
                str(i),
                words_of(c.get("layout", "")),
                figures(mid),
                f"{figures(low)}–{figures(high)}",
                grouped(c.get("tokens_per_s")),
                percent(c.get("mfu") or None, 0),  # 0 stands for a machine whose peak is not known
                figures(_memory(c)),
                f"{usd:,.2f}" if is_number(usd) else "–",
                str(c.get("verdict") or ("chosen" if c.get("layout") == chosen else "")),
            )
        )
        if marked is None and str(c.get("layout")) == chosen:
            marked = i - 1
    html = table(_TABLE_HEAD, rows, numbers=(0, 2, 3, 4, 5, 6, 7), mark=marked)
    return join(
        [html, tag("p", kind("calculated"), " Predictions; intervals hold nine in ten.", cls="caption")]
    )


def rejections(plan: Mapping[str, Any]) -> Html:
    """Rejections with their two numbers and what would make them win: a few shown, all on demand."""
    found = [r for r in plan.get("rejected") or [] if isinstance(r, Mapping)]
    counts: dict[str, int] = {}
    for r in found:
        name = str(r.get("kind") or "other")
        counts[name] = counts.get(name, 0) + 1
    words = " · ".join(f"{n} {name}" for name, n in sorted(counts.items(), key=lambda item: -item[1]))
    heads = ("layout", "why", "value", "limit", "would win, or nearest that works")
    shown = table(heads, [_rejection(r) for r in _nearest(found)[:REJECTED_SHOWN]], numbers=(2, 3))
    rest = None
    if len(found) > REJECTED_SHOWN:
        rest = details(f"All {len(found)}", table(heads, [_rejection(r) for r in found], numbers=(2, 3)))
    return join(
        [
            tag("h3", _rejected_head(plan, len(found))),
            tag("p", words, cls="quiet"),
            shown,
            rest,
        ]
    )


def _rejected_head(plan: Mapping[str, Any], told: int) -> str:
    """Of a large space only the nearest misses are listed: their number is not that of all rejections."""
    searched = plan.get("searched") or {}
    candidates = plan.get("candidates") or []
    every = max(told, int(searched.get("divide") or 0) - len(candidates))
    more = f", of which the nearest {grouped(told)} are listed" if every > told else ""
    return f"Rejected: {grouped(every)}{more}"


def _rejection(r: Mapping[str, Any]) -> tuple[object, ...]:
    unit = f"\u202f{r['unit']}" if r.get("unit") else ""
    why = " – ".join(str(w) for w in (r.get("kind"), r.get("reason")) if w)
    return (
        words_of(r.get("layout", "")),
        why,
        f"{_number(r.get('value'))}{unit}",
        f"{_number(r.get('limit'))}{unit}",
        escape(r.get("nearest") or ""),
    )


def _nearest(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of each kind in turn the one nearest to its limit: the alternatives that a reader would ask about."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for r in found:
        by_kind.setdefault(str(r.get("kind")), []).append(r)
    for rows in by_kind.values():
        rows.sort(key=_distance)
    ordered = []
    for i in range(max(map(len, by_kind.values()), default=0)):
        ordered += [rows[i] for rows in by_kind.values() if i < len(rows)]
    return ordered


def _distance(r: Mapping[str, Any]) -> float:
    value, limit = r.get("value"), r.get("limit")
    return abs(value / limit - 1) if is_number(value) and is_number(limit) and value and limit else 1.0


def _memory(candidate: Mapping[str, Any]) -> float | None:
    """What is compared with ``memory_gib`` of the metrics: the device's or process's own figure."""
    found = candidate.get("memory_gib")
    values = finite(list(found.values()) if isinstance(found, Mapping) else found or [])
    return values[-1] if values else None


def _number(value: Any) -> str:
    if isinstance(value, int):
        return grouped(value)
    return figures(value) if is_number(value) else str(value or "–")


def ratio(measured: float | None, predicted: Any) -> str:
    """``0.98×``; a dash when either is missing."""
    if measured is None or not is_number(predicted) or not predicted:
        return "–"
    return f"{measured / predicted:.2f}×"

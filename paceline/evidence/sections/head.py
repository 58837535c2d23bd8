"""The top of the report: which run, how it ended, and its headline figures."""

from __future__ import annotations

import time

from paceline.evidence import verdict
from paceline.evidence.facts import Facts
from paceline.evidence.page.document import tile
from paceline.evidence.page.html import Html, join, tag
from paceline.evidence.page.numbers import clock, count, figures, grouped, percent


def head(facts: Facts) -> Html:
    """Name, verdict, summary and tiles."""
    end = verdict.ending(facts)
    started = facts.status.started_s if facts.status else 0
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started)) if started else ""
    kind = facts.status.kind if facts.status else "run"
    tags = facts.job_keys.get("run.tags") or []
    note = facts.job_keys.get("run.note") or ""
    words = [f"Paceline · {kind}", when, *(map(str, tags) if isinstance(tags, list) else [])]
    return join(
        [
            tag("p", " · ".join(w for w in words if w), cls="brand"),
            tag("h1", facts.name),
            tag("p", end.sign, " ", end.text, cls=f"verdict {end.tone}"),
            tag("p", verdict.summary(facts), cls="lead"),
            tag("p", note, cls="quiet") if note else None,
            tag("div", *tiles(facts), cls="tiles"),
        ]
    )


def tiles(facts: Facts) -> list[Html]:
    """Headline figures; one without a value is left out rather than shown as a dash."""
    made: list[Html] = []
    of = f" of the {verdict.last_steps(facts) or 'steps'}"
    row = facts.last_eval
    if row is not None:
        bits = row.get("bits_per_byte")
        note = f"{figures(bits)} bits per byte, step {row.get('step')}" if bits else f"step {row.get('step')}"
        made.append(tile("held-out loss", figures(row.get("loss"), 4), note, "measured here"))
    rate = facts.median("tokens_per_s")
    if rate is not None:
        mfu = facts.median("mfu")
        note = f"median{of}" + (f" · MFU {percent(mfu, 0)}" if mfu is not None else "")
        made.append(tile("tokens a second", grouped(rate), note, "measured here"))
    times = facts.step_times
    if times is not None:
        predicted = (facts.plan.get("best") or {}).get("step_s") or []
        note = f"median{of}" + (f" · {figures(predicted[1])} predicted" if len(predicted) == 3 else "")
        made.append(tile("a step", unit(figures(times.p50), "s"), note, "measured here"))
    memory = facts.peak("memory_gib")
    if memory is not None:
        made.append(tile("memory", unit(figures(memory), "GiB"), "peak of the worst rank", "measured here"))
    made.append(tile("layout", layout_words(facts.layout), _devices(facts), ""))
    if facts.wall_s:
        tokens = (facts.train.get("tokens") or [None])[-1]
        note = f"{count(tokens)} tokens" if tokens else "of the longest-living rank"
        note += f" · {verdict.every(facts.attempts)}" if facts.attempts > 1 else ""
        made.append(tile("time", clock(facts.wall_s), note, "measured here"))
    cost = facts.peak("cost_usd")
    if cost is not None:
        made.append(tile("cost", f"${cost:,.2f}", "at the job's price", "calculated"))
    return made


def unit(value: str, name: str) -> Html:
    """A figure with its unit in small."""
    return join([value, tag("small", f"\u202f{name}")])


def layout_words(layout: str) -> Html:
    """The axes large, the options small."""
    axes = [
        p for p in layout.split(",") if p.split("=")[0] in ("single", "dp", "fsdp", "tp", "pp", "cp", "ep")
    ]
    return tag("span", ",".join(axes) or layout or "–", title=layout)


def _devices(facts: Facts) -> str:
    words = "1 device" if facts.devices == 1 else f"{facts.devices} devices"
    precision = facts.job_keys.get("train.precision")
    if precision and precision != "auto":
        words += f" · {precision}"
    return words + (f" · {facts.attempts} attempts" if facts.attempts > 1 else "")

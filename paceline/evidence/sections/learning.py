"""Did it learn, and how fast: loss with held-out points and baselines, and throughput."""

from __future__ import annotations

import math

from paceline.evidence.facts import Facts, finite, is_number, quantile
from paceline.evidence.page.charts import Chart, Level, Series, smoothed
from paceline.evidence.page.document import figure, section
from paceline.evidence.page.html import Html, details, table, tag
from paceline.evidence.page.numbers import clock, figures, grouped, seconds


def learning(facts: Facts) -> Html:
    """Loss chart and the table of evaluations."""
    return section(
        "learning",
        "Learning",
        figure(loss_chart(facts).render(), _loss_caption(facts), "measured here"),
        evaluations(facts),
    )


def loss_chart(facts: Facts) -> Chart:
    """Training loss of every step, its running mean, held-out points, and simple models as levels."""
    steps, losses = facts.train.get("step", []), facts.train.get("loss", [])
    span = max(5, len(losses) // 40) | 1  # odd: a centred mean has a middle
    mean = smoothed([float(v) if is_number(v) else math.nan for v in losses], span)
    series = [
        Series("each step", steps, losses, "faint", "ink-a"),
        Series(f"training, mean of {span} steps", steps, mean, "line", "ink-a"),
    ]
    if len(losses) <= 30:
        series = [Series("training loss", steps, losses, "line", "ink-a")]
    points = [(row["step"], row["loss"]) for row in facts.evals if is_number(row.get("loss"))]
    if points:
        series.append(Series("held-out", [x for x, _ in points], [y for _, y in points], "dots", "ink-b"))
    return Chart(
        "loss by step",
        series,
        levels=baseline_levels(facts),
        marks=[(float(step), "restart") for step in facts.restarts],
        y_name="nats per token",
        show=lambda y: figures(y, 4),
    )


def baseline_levels(facts: Facts) -> list[Level]:
    """Simple models on the held-out set, in nats per token; converted from bits per byte if need be."""
    row = facts.last_eval or {}
    bits, loss = row.get("bits_per_byte"), row.get("loss")
    factor = float(loss / bits) if is_number(bits) and is_number(loss) and bits else None
    levels = []
    for name, base in facts.baselines.items():
        value = base.get("loss")
        if value is None and factor is not None and "bits_per_byte" in base:
            value = base["bits_per_byte"] * factor
        if value is not None:
            beside = f", {figures(base['bits_per_byte'])} bits per byte" if "bits_per_byte" in base else ""
            levels.append(Level(f"{name} model: {figures(value)}{beside}", value, f"{name} {figures(value)}"))
    return levels


def _loss_caption(facts: Facts) -> str:
    text = "Loss of the global batch at each step, in nats per valid target token; held-out points beside it."
    if facts.baselines:
        text += " The dashed levels are what simple models reach on the same held-out set."
    if facts.restarts:
        text += " Of steps that were done twice, the last attempt is shown."
    return text


def evaluations(facts: Facts) -> Html:
    """Every evaluation in a table that opens."""
    if not facts.evals:
        return tag("p", "No evaluation was recorded.", cls="quiet")
    rows = [
        (
            grouped(row.get("step")),
            str(row.get("set", "eval")),
            figures(row.get("loss"), 4),
            figures(row.get("bits_per_byte"), 4),
            figures(row.get("perplexity"), 4),
            grouped(row.get("tokens")),
        )
        for row in facts.evals
    ]
    heads = ("step", "set", "loss", "bits per byte", "perplexity", "tokens")
    return tag(
        "div",
        details(_counted(len(rows)), table(heads, rows, numbers=(0, 2, 3, 4, 5))),
        style="margin-top:14px",
    )


def _counted(n: int) -> str:
    return "1 evaluation" if n == 1 else f"All {n} evaluations"


def speed(facts: Facts) -> Html:
    """Throughput chart and the distribution of step times."""
    times = facts.step_times
    table_of_times: Html | None = None
    if times is not None:
        cells = (times.p50, times.p95, times.p99, times.worst, times.first)
        heads = ("median", "p95", "p99", "worst", "first step")
        table_of_times = table(heads, [[seconds(v) for v in cells]], numbers=range(5), cls="snug")
    return section(
        "speed",
        "Speed",
        figure(
            tag("div", throughput_chart(facts).render(), table_of_times),
            _speed_caption(facts),
            "measured here",
        ),
    )


def throughput_chart(facts: Facts) -> Chart:
    """Tokens a second of every step, with the plan's interval behind it."""
    steps, rates = facts.train.get("step", []), facts.train.get("tokens_per_s", [])
    levels = []
    best = facts.plan.get("best") or {}
    bounds, planned = finite(best.get("step_s") or []), best.get("tokens_per_s")
    if len(bounds) == 3 and is_number(planned):
        low, mid, high = bounds
        name = f"planned {grouped(planned)}, with its 90 % interval"
        levels.append(Level(name, planned, low=planned * mid / high, high=planned * mid / low))
    tops = [quantile(finite(rates), 0.995)] if finite(rates) else []
    tops += [level.high or level.value for level in levels]
    return Chart(
        "tokens a second by step",
        [Series("tokens a second", steps, rates, "line", "ink-a")],
        levels=levels,
        marks=[(float(step), "restart") for step in facts.restarts],
        y_range=(0.0, 1.1 * max(tops)) if tops else None,
        y_name="tokens/s",
        show=grouped,
    )


def _speed_caption(facts: Facts) -> str:
    times = facts.step_times
    if times is None:
        return "No step was finished."
    text = f"Real tokens a second, padding apart. Step times over {times.count} steps after the first few."
    waited = facts.train.get("time_s") or []
    first = waited[0] if waited and is_number(waited[0]) else None
    return text + (f" The first step ended {clock(first)} after the start." if first is not None else "")

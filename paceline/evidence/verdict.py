"""How a run ended and whether it went as planned, in sentences: the head of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.evidence.facts import Facts, finite, is_number
from paceline.evidence.page.numbers import clock, figures, grouped, percent, seconds
from paceline.evidence.waste import phase_shares, reason_words, waste_rows
from paceline.ledger.outcome import MEANING, Exit
from paceline.ledger.plural import many

Tone = Literal["good", "warn", "bad"]


@dataclass(frozen=True)
class Judged:
    """A finding with its tone; the sign repeats the tone for readers who see no colour."""

    tone: Tone
    text: str

    @property
    def sign(self) -> str:
        return {"good": "✓", "warn": "!", "bad": "✗"}[self.tone]


def every(attempts: int) -> str:
    """``both attempts``, ``all 3 attempts``."""
    return "both attempts" if attempts == 2 else f"all {attempts} attempts"


def ending(facts: Facts) -> Judged:
    """The state of the run in one line."""
    done, planned = facts.last_step, facts.steps_planned
    status = facts.status
    so_far = f"{done} of {many(planned, 'step')}" if planned else many(done, "step")
    if facts.state == "done":
        return Judged("good", f"done: {so_far}{_in_time(facts)}")
    if facts.state == "preempted":
        return Judged("warn", f"stopped and saved: {so_far}; continue with --resume")
    if facts.state == "lost":
        return Judged("bad", f"lost: its process is gone and said nothing after step {done} of {planned}")
    if facts.state == "failed":
        code = status.exit_code if status else None
        meaning = next((MEANING[e] for e in Exit if e == code), "no message")
        why = (status.message if status else "") or meaning
        return Judged("bad", f"failed after {so_far}: {why}" + (f" (exit {code})" if code else ""))
    if facts.state == "unknown":
        return Judged(
            "bad", f"no status file: this folder tells of {many(done, 'step')} and not how it ended"
        )
    return Judged("warn", f"{facts.state}: {so_far} when this page was written")


def prediction(facts: Facts, predicted_s: Sequence[float]) -> Judged | None:
    """Whether the median step lies inside the plan's interval; ``None`` when either is missing."""
    bounds = finite(predicted_s)
    times = facts.step_times
    if len(bounds) != 3 or times is None:
        return None
    low, mid, high = bounds
    text = (
        f"{figures(mid)} s a step predicted ({figures(low)}–{figures(high)}), {figures(times.p50)} measured"
    )
    if low <= times.p50 <= high:
        return Judged("good", f"{text}: inside the plan's interval")
    ratio = times.p50 / mid
    side = f"{figures(ratio)}× slower" if ratio > 1 else f"{figures(1 / ratio)}× faster"
    return Judged("warn", f"{text}: {side} than planned, outside the interval")


def unattributed(facts: Facts) -> Judged | None:
    """Whether the ledger explains at least 99 % of each rank's time."""
    shares = [r.unattributed_s / r.wall_s for r in facts.ranks if r.wall_s > 0]
    if not shares:
        return None
    worst = max(shares)
    if worst <= 0.01:
        return Judged("good", f"{percent(worst, 2)} of the worst rank's time has no account (limit 1 %)")
    return Judged("warn", f"{percent(worst)} of the worst rank's time has no account, above the limit of 1 %")


def summary(facts: Facts) -> str:
    """What a reader should know after ten seconds: what it reached, how fast, and what it lost most on."""
    parts = [_reached(facts), _attempts(facts), _speed(facts), _lost(facts)]
    return " ".join(p for p in parts if p) or "Nothing was measured before this run ended."


def history(facts: Facts) -> str:
    """``1200 steps on dp=2, then 20 on fsdp=2``; "" for a run of one attempt."""
    if facts.attempts < 2:
        return ""
    parts: list[str] = []
    for stretch in facts.stretches:
        unit = "" if parts else " step" if stretch.steps == 1 else " steps"
        again = f" ({stretch.attempts} attempts)" if stretch.attempts > 1 else ""
        layout = stretch.layout or "a layout that nobody noted"
        parts.append(f"{stretch.steps}{unit} on {layout}{again}")
    return ", then ".join(parts)


def last_steps(facts: Facts) -> str:
    """Of which steps a speed is, where it is not of all: ``last 20 steps``; "" for a run of one attempt."""
    n = facts.newest_steps
    return "" if n is None else "last step" if n == 1 else f"last {n} steps"


def _attempts(facts: Facts) -> str:
    told = history(facts)
    return f"It is the work of {facts.attempts} attempts: {told}." if told else ""


def _reached(facts: Facts) -> str:
    row = facts.last_eval
    if row is None:
        losses = finite(facts.train.get("loss", []))
        return (
            f"Its last training loss was {figures(losses[-1], 4)}; it was never evaluated." if losses else ""
        )
    text = f"It reached a held-out loss of {figures(row.get('loss'), 4)}"
    bits = row.get("bits_per_byte")
    if not is_number(bits):
        return text + "."
    text += f", {figures(bits)} bits per byte"
    return f"{text}{_beside(facts, float(bits))}."


def _beside(facts: Facts, bits: float) -> str:
    """The strongest simple model that it beats, or else the weakest, which it does not beat yet."""
    simple = {n: b["bits_per_byte"] for n, b in facts.baselines.items() if "bits_per_byte" in b}
    beaten = {name: value for name, value in simple.items() if value > bits}
    if beaten:
        name = min(beaten, key=lambda n: beaten[n])
        return f", better than a {name} model of the same data ({figures(beaten[name])})"
    if simple:
        name = max(simple, key=lambda n: simple[n])
        return f", not yet better than a {name} model of the same data ({figures(simple[name])})"
    return ""


def _speed(facts: Facts) -> str:
    rate = facts.median("tokens_per_s")
    if rate is None:
        return ""
    devices = "one device" if facts.devices == 1 else f"{facts.devices} devices"
    mfu = facts.median("mfu")
    tail = f", {percent(mfu, 0)} of the matmul peak" if mfu is not None else ""
    layout = facts.layout or "single"
    of = last_steps(facts)
    where = f"As {layout} on {devices}" + (f", in its {of}," if of else "")
    return f"{where} it took in {grouped(rate)} tokens a second{tail}."


def _lost(facts: Facts) -> str:
    rows = facts.time_rows
    if not rows:
        return ""
    shares = phase_shares(rows)
    time = "the device time" if facts.attempts < 2 else f"the device time of {every(facts.attempts)}"
    text = f"{percent(shares['compute'])} of {time} was compute"
    waste = [r for r in waste_rows(rows) if r["share"] >= 0.005]
    if not waste:
        return text + "; nothing else took more than half a percent."
    worst = waste[0]
    name = f"{reason_words(worst['phase'], worst['reason'])} ({worst['phase']})"
    spent = seconds(worst["seconds"])
    return f"{text}; most of the rest went to {name}: {percent(worst['share'])}, {spent} of device time."


def _in_time(facts: Facts) -> str:
    attempts = f" over {facts.attempts} attempts" if facts.attempts > 1 else ""
    return f" in {clock(facts.wall_s)}{attempts}" if facts.wall_s else ""

"""The last lines of a run (interface §10): done, time, plan, report; or stopped, and how to go on."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from paceline.api.lines import clock_text
from paceline.api.runs import Run
from paceline.ledger.outcome import MEANING, Exit, Failed, PacelineError
from paceline.ledger.plural import many
from paceline.plan.digits import three

if TYPE_CHECKING:
    from paceline.evidence.facts import Facts


def closing_lines(run: Run) -> list[tuple[str, str]]:
    """(word, text) of each line; a line whose facts are not there is left out."""
    from paceline.evidence.facts import Facts
    from paceline.evidence.waste import time_line

    if run.state == "preempted":
        return [("stopped", stopped_text(run))]
    facts = Facts(run.folder)
    lines = [("done", done_text(run, facts))] if run.state == "done" else []
    lines += [("time", time_line(facts.time_rows)), ("plan", plan_text(facts))]
    if run.folder.report.exists():
        lines.append(("report", str(run.folder.report)))
    return [(word, text) for word, text in lines if text]


def ended(run: Run) -> PacelineError | None:
    """Why a run ended otherwise than done, as its status says it."""
    code = run.exit_code
    if not code:
        return None
    meaning = next((MEANING[known] for known in Exit if known == code), "")
    return Failed(
        run.status.message or meaning,
        exit_code=code,
        seen=f"{run.name} {run.state} at step {run.status.step}/{run.status.steps}",
        rule=meaning,
        use=f"paceline logs {quote(str(run.path))}",
    )


def stopped_text(run: Run) -> str:
    """``after step 121, saved runs/stdlib@121 (verified) · continue: … --resume · exit 50``.

    The run is named by its folder: its ``job.toml`` has every value, those of ``--name`` and ``--set`` too.
    """
    saved = [c for c in run.checkpoints() if c.latest] or run.checkpoints()[-1:]
    kept = f"saved {run.path}@{saved[-1].step} (verified)" if saved else "nothing saved"
    way = quote(str(run.path))
    how = f"continue: paceline train {way} --resume" if saved else f"begin again: paceline train {way}"
    return f"after step {run.status.step}, {kept} · {how} · exit {run.exit_code}"


def done_text(run: Run, facts: Facts) -> str:
    """``200 steps in 1:24 · held-out loss 4.871 · 1.86 bits/byte (unigram 2.67)``."""
    status, row = run.status, facts.last_eval or {}
    took_s = facts.wall_s or status.updated_s - status.started_s
    starts = f" over {many(status.attempt + 1, 'start')}" if status.attempt else ""
    parts = [f"{many(status.step, 'step')} in {clock_text(took_s)}{starts}"]
    if row.get("loss") is not None:
        parts.append(f"held-out loss {row['loss']:.3f}")
    if row.get("bits_per_byte") is not None:
        beside = [f"{n} {b['bits_per_byte']:.2f}" for n, b in facts.baselines.items() if "bits_per_byte" in b]
        parts.append(f"{row['bits_per_byte']:.2f} bits/byte" + (f" ({', '.join(beside)})" if beside else ""))
    return " · ".join(parts)


def plan_text(facts: Facts) -> str:
    """``0.41 s predicted, 0.40 measured: inside its interval``; empty where nothing was predicted."""
    best = facts.plan.get("best")
    predicted = best.get("step_s") if isinstance(best, dict) else None
    times = facts.step_times
    if times is None or not isinstance(predicted, list | tuple) or len(predicted) != 3:
        return ""
    low, mid, high = map(float, predicted)
    inside = low <= times.p50 <= high
    verdict = "inside its interval" if inside else f"outside its interval {three(low)}–{three(high)}"
    return f"{three(mid)} s predicted, {three(times.p50)} measured: {verdict}"

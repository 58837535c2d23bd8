"""The last lines of a run (interface §10): done, time, plan, report; or stopped, and how to go on."""

from __future__ import annotations

from paceline.api.lines import clock_text
from paceline.api.runs import Run
from paceline.ledger.outcome import MEANING, Exit, Failed, PacelineError

# Reasons as the console names them; a reason that is not here shows as the ledger has it.
ACCOUNT_ORDER = ("compute", "update", "deliver", "recover", "plan", "idle")
LEAST_SHARE = 0.0005


def closing_lines(run: Run, job: str) -> list[tuple[str, str]]:
    """(word, text) of each line; a line whose facts are not there is left out."""
    if run.state == "preempted":
        return [("stopped", stopped_text(run, job))]
    lines = [("done", _done_text(run))] if run.state == "done" else []
    lines += [(word, text) for word, text in (("time", time_text(run)), ("plan", _plan_text(run))) if text]
    if run.folder.report.exists():
        lines.append(("report", str(run.folder.report)))
    return lines


def ended(run: Run, job: str) -> PacelineError | None:
    """Why a run ended otherwise than done, as its status says it."""
    code = run.exit_code
    if not code:
        return None
    return Failed(
        run.status.message or MEANING[Exit(code)],
        exit_code=code,
        seen=f"{run.name} {run.state} at step {run.status.step}/{run.status.steps}",
        rule=MEANING[Exit(code)],
        use=f"paceline logs {run.name}",
    )


def stopped_text(run: Run, job: str) -> str:
    """``after step 121, saved runs/stdlib@121 (verified) · continue: … --resume · exit 50``."""
    saved = [c for c in run.checkpoints() if c.latest] or run.checkpoints()[-1:]
    kept = f"saved {run.path}@{saved[-1].step} (verified)" if saved else "nothing saved"
    how = f"continue: paceline train {job} --resume"
    return f"after step {run.status.step}, {kept} · {how} · exit {run.exit_code}"


def _done_text(run: Run) -> str:
    parts = [f"{run.status.step} steps in {clock_text(run.status.updated_s - run.status.started_s)}"]
    row = run.last("eval")
    if row.get("loss") is not None:
        parts.append(f"held-out loss {row['loss']:.3f}")
    if row.get("bits_per_byte") is not None:
        parts.append(f"{row['bits_per_byte']:.2f} bits/byte")
    return " · ".join(parts)


def time_text(run: Run) -> str:
    """Where the time went, in percent: ``compute 91.2 · … · idle 3.1 % (data 1.0, host 2.1)``."""
    from paceline.ledger.accounts import where_time_went

    try:
        rows = where_time_went(run.folder)
    except (OSError, ValueError):
        return ""
    shares: dict[str, dict[str, float]] = {}
    for row in rows:
        shares.setdefault(row["phase"], {})[row["reason"]] = row["share"]
    order = [p for p in ACCOUNT_ORDER if p in shares] + [p for p in shares if p not in ACCOUNT_ORDER]
    parts = [
        _share_text(phase, shares[phase]) for phase in order if sum(shares[phase].values()) >= LEAST_SHARE
    ]
    return " · ".join(parts) + " %" if parts else ""


def _share_text(phase: str, reasons: dict[str, float]) -> str:
    total = 100 * sum(reasons.values())
    named = sorted(
        ((s, r) for r, s in reasons.items() if r and r != phase and s >= LEAST_SHARE), reverse=True
    )
    detail = ", ".join(f"{reason} {100 * share:.1f}" for share, reason in named[:3])
    return f"{phase} {total:.1f}" + (f" ({detail})" if detail else "")


def _plan_text(run: Run) -> str:
    """Predicted against measured seconds a step; empty where nothing was predicted."""
    from paceline.ledger.records import read

    record = read(run.folder, 1) or {}
    decision = record.get("decision")
    step_s = decision.get("step_s") if isinstance(decision, dict) else None
    times = sorted(t for t in run.metrics().get("step_time_s", []) if t == t)
    if not times or not isinstance(step_s, list | tuple) or len(step_s) != 3:
        return ""
    low, mid, high = map(float, step_s)
    measured = times[len(times) // 2]
    if low <= measured <= high:
        verdict = "inside its interval"
    else:
        verdict = f"outside its interval {low:.2g}–{high:.2g}"
    return f"{mid:.2g} s predicted, {measured:.2g} measured: {verdict}"

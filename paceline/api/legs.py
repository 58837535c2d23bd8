"""The legs of a proof: one device first, then the layout, each judged; and what is written of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.api.bench import Bench
from paceline.api.isolate import isolate
from paceline.api.subject import Subject
from paceline.api.trials import Outcome
from paceline.evidence.parity import Judged, judge, judge_own
from paceline.evidence.rounding import message_rounding
from paceline.ledger.atomic import read_json, write_json
from paceline.ledger.folder import RunFolder
from paceline.ledger.outcome import Exit, Failed, PacelineError
from paceline.ledger.plural import many
from paceline.plan.layout import Layout
from paceline.recipes.case import Case

SINGLE = Layout()


def ready(bench: Bench, subject: Subject, *, exact: bool, own: bool) -> None:
    """Run one device: the references, and in the job's own precision its own error; raises what ended it."""
    for error in references(bench, [subject], exact=exact, own=own).values():
        raise error


def references(
    bench: Bench, subjects: Sequence[Subject], *, exact: bool, own: bool
) -> dict[str, PacelineError]:
    """One device for many subjects, in one launch; subject → what ended it, of those that it ended."""
    cases: dict[str, tuple[Subject, Case]] = {}
    for subject in subjects:
        wanted = [(SINGLE, "fp64", True)] if exact else []
        wanted += [(SINGLE, "still", True), (SINGLE, "job", False)] if own else []
        for layout, leg, write in wanted:
            case = subject.case(f"{subject.name} {leg}", layout, leg, write=write)
            cases[case.name] = subject, case
    ended: dict[str, PacelineError] = {}
    done = iter(range(1, len(cases) + 1))

    def heard(outcome: Outcome) -> None:
        bench.say("prove", f"one device: {next(done)} of {many(len(cases), 'training')} done")

    bench.say("prove", f"one device first: {many(len(cases), 'training')} to compare with")
    for outcome in bench.trials.run([case for _, case in cases.values()], heard):
        subject, case = cases[outcome.case.name]
        if outcome.error is not None:
            ended.setdefault(subject.name, outcome.error)
        elif not all(report["finite"] for report in reports_of(outcome)):
            ended.setdefault(subject.name, _diverges(len(reports_of(outcome)[0]["losses"])))
        elif not case.write:
            write_json(bench.scratch / f"{subject.name}-own.json", {"reports": _plain(outcome.reports)})
    return ended


def _diverges(step: int) -> Failed:
    """One device itself comes to no number: there is nothing to compare a layout with."""
    return Failed(
        f"one device diverges: loss or gradient is not finite at step {step} of the proof",
        exit_code=Exit.NONFINITE,
        key="optimizer.lr",
        seen=f"step {step} on one device",
        rule="a proof compares with what one device computes, which must be numbers",
        use="--set optimizer.lr=1e-4, or the value that train runs with",
    )


def run_legs(bench: Bench, subject: Subject, layout: Layout, *, exact: bool, own: bool) -> dict[str, Judged]:
    """The legs of one layout, judged, by name: ``fp64`` and the job's precision."""
    cases = [subject.case(leg, layout, leg) for leg, on in (("fp64", exact), ("job", own)) if on]
    found: dict[str, Judged] = {}
    for outcome in bench.trials.run(cases):
        name, judged = judged_leg(bench, subject, layout, outcome)
        found[name] = judged
    return found


def judged_leg(bench: Bench, subject: Subject, layout: Layout, outcome: Outcome) -> tuple[str, Judged]:
    """The verdict on one case that ran."""
    reports = reports_of(outcome)
    index = read_json(Path(outcome.case.against) / "reference.json")
    if outcome.case.leg == "fp64":
        return "fp64", judge(index, reports, layout)
    alone = read_json(bench.scratch / f"{subject.name}-own.json")["reports"]
    rounding = message_rounding(layout, subject.precision, subject.job.train.reduce_precision)
    return subject.precision, judge_own(index, _numbers(alone), reports, subject.precision, rounding)


def what_it_needs(bench: Bench, subject: Subject, layout: Layout, leg: str) -> tuple[str, ...]:
    """Which parts of a failing layout its failure needs; () where a rerun does not tell."""

    def fails(less: Layout) -> bool:
        if subject.refused(less) is not None:
            return False
        case = subject.case(f"less: {less}", less, "fp64" if leg == "fp64" else "job")
        outcome = bench.trials.run([case])[0]
        return outcome.error is None and not judged_leg(bench, subject, less, outcome)[1].equal

    return isolate(layout, fails)[1]


def reports_of(outcome: Outcome) -> list[dict[str, Any]]:
    """The ranks' reports; raises what ended them instead."""
    if outcome.error is not None:
        raise outcome.error
    return outcome.reports


def write_evidence(folder: RunFolder, proof: Mapping[str, Any], judged: Mapping[str, Judged]) -> Path:
    """``evidence/prove.json``: the rows, and of each leg every tensor that differs, worst rank and its figures."""
    differing = {
        name: [
            {"name": f.name, "kind": f.kind, "error": f.error, "limit": f.limit, "rank": f.rank, **f.block}
            for f in j.differing
        ]
        for name, j in judged.items()
    }
    path = folder.evidence / "prove.json"
    write_json(path, _plain({"schema": 1, **proof, "differing": differing}))
    return path


def _plain(value: Any) -> Any:
    """JSON has no infinity: the largest double stands for it."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _numbers(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What :func:`_plain` wrote, with infinity where it says null as an error."""
    for report in reports:
        for blocks in report["kinds"].values():
            for block in blocks:
                block["error"] = math.inf if block["error"] is None else block["error"]
    return reports

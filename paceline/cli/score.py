"""``plan --score``: the planner held to measured runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.cli.screen import Reply, Screen
from paceline.ledger.outcome import Exit, Refused

if TYPE_CHECKING:
    from paceline.plan.score.score import Score


def reply(screen: Screen, runs: str, calibrate: str | None, out: str | None, anchors: int) -> Reply:
    """Predict, write the table where one is asked for, and say how far off the predictions are."""
    from paceline.api.score import score
    from paceline.plan.score.show import text

    found: Score = score(
        runs, calibrate=calibrate, out=out, anchors=anchors, say=lambda line: screen.note(f"score    {line}")
    )
    if out is not None:
        screen.note(f"saved    {out}: {len(found.scored)} predictions")
    return Reply(found.to_dict(), text(found, groups=True))


def refuse_mixed(
    score: str | None, job: str | None, others: Mapping[str, object], own: Mapping[str, object]
) -> None:
    """Refuse (2) a score with what asks for a plan, and a plan with what only a score has, or without a job."""
    if score is None:
        given = [name for name, value in own.items() if value]
        if given:
            _refuse(
                f"{given[0]} without --score",
                given[0],
                "it belongs to a score of measured runs",
                "--score CSV",
            )
        if job is None:
            raise Refused(
                "JOB is missing",
                exit_code=Exit.USAGE,
                seen="paceline plan",
                rule="`paceline plan` needs JOB",
                use="paceline plan JOB",
            )
        return
    given = [name for name, value in {"JOB": job, **others}.items() if value]
    if given:
        rule = "a score predicts the runs of a table; it plans no job"
        _refuse(f"{given[0]} with --score", f"--score {score} {given[0]}", rule, f"--score {score}")


def _refuse(message: str, seen: str, rule: str, use: str) -> None:
    raise Refused(
        message, exit_code=Exit.USAGE, key="plan", seen=seen, rule=rule, use=f"paceline plan {use}".strip()
    )

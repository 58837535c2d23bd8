"""What a run says when a rule ends it before a step: the error of one that stops, the message of one that goes back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from paceline.ledger.outcome import Exit, Failed
from paceline.recipes.brief import Brief
from paceline.recipes.feed import Feed
from paceline.recipes.keeper import Keeper
from paceline.update.controls import Verdict
from paceline.update.loop import End


def stopped_by(brief: Brief, feed: Feed, keeper: Keeper, end: End) -> Failed:
    """The error of a run that a verdict has ended (41, or 40 for a rule on a finite number)."""
    verdict = end.verdict
    assert verdict is not None
    last = keeper.last.step if keeper.last is not None else keeper.start
    allowed = f"the weights of step {last} are saved" if last else "no checkpoint was written yet"
    if verdict.signal == "replicas":
        return _replicas_differ(brief, end.step, last, verdict)
    batch = f"the batch: {rows_of(feed, end.step + 1)}"
    if verdict.signal == "nonfinite":
        return Failed(
            f"training stopped: {verdict.seen} at step {end.step + 1}",
            exit_code=Exit.NONFINITE,
            key=f"control.{verdict.control}",
            seen=f"{verdict.seen}\n{verdict.origin}\n{batch}",
            rule="a step whose loss or gradient norm is not finite never touches the weights",
            allowed=allowed,
            use=f"--set optimizer.lr={brief.job.optimizer.lr / 3:.1g}, or look at the batch of step {end.step + 1}",
        )
    return Failed(
        f"stopped by control {verdict.control}: {verdict.seen} at step {end.step + 1}",
        exit_code=Exit.CONTROL,
        key=f"control.{verdict.control}",
        seen=f"{verdict.seen}\n{batch}",
        rule=f"a rule that says stop; {verdict.owner} answers for it",
        allowed=allowed,
        use=f"paceline train {brief.folder.path} --resume --set control.{verdict.control}.action=alert",
    )


def _replicas_differ(brief: Brief, step: int, last: int, verdict: Verdict) -> Failed:
    sound = (
        f"the weights of step {last} are saved, and were equal" if last else "no checkpoint was written yet"
    )
    return Failed(
        f"replicas differ after step {step}",
        exit_code=Exit.CONTROL,
        key=f"control.{verdict.control}",
        seen=verdict.seen,
        rule="ranks that hold the same weights hold the same bits, unless memory or a device is at fault",
        allowed=sound,
        use=f"paceline train {brief.folder.path} --resume, without the device of that rank if it comes again; or "
        '[control.replicas] action = "rollback"',
    )


def going_back(feed: Feed, end: End) -> dict[str, Any]:
    """For the launcher: the verdict, the step that it fired on, and the position in the data after its batch.

    Where replicas differ the data is not to blame: ``position`` is then None, and nothing is left out.
    """
    assert end.verdict is not None
    if end.verdict.signal == "replicas":
        return asdict(end.verdict) | {"failed": end.step, "position": None}
    return asdict(end.verdict) | {"failed": end.step + 1, "position": feed.plan.position_of(end.step + 1)}


def rows_of(feed: Feed, step: int) -> str:
    """Which rows of the run a step uses, in words."""
    first, after = feed.plan.position_of(step - 1), feed.plan.position_of(step)
    return f"rows {first} to {after - 1} of the run"

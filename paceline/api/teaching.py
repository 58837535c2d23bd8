"""Whether a run can correct a plan, and if not, why: each reason is one of its own, since each has another repair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NoReturn

from paceline.api.runs import find_runs
from paceline.ledger.folder import RunFolder
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.status import LIVE_STATES

if TYPE_CHECKING:
    from paceline.api.runs import Run


def taught_by(words: Sequence[str]) -> list[Run]:
    """The runs of ``--from``, each with a plan and a ledger, and at its end.

    Raises:
        Refused: (2) a word is no run, or a run that lives, was never planned, or has no ledger.
    """
    for word in words:
        path = Path(word)
        if path.exists() and not RunFolder(path).is_run():
            what = "a folder without a run's files" if path.is_dir() else "a file"
            rule = "--from takes a run: its folder, its name, or `last`"
            _refuse(f"{word} is no run", f"{word}: {what}", rule, "paceline runs, which lists them")
    found = find_runs(words)
    for run in found:
        refuse_unfit(run)
    return found


def refuse_unfit(run: Run) -> None:
    """Refuse (2) a run that says nothing of what its steps took, by the first thing that is missing."""
    from paceline.ledger import records
    from paceline.ledger.lines import read_ranks

    state = run.state
    if state in LIVE_STATES:
        rule = "a run teaches once it has ended: until then its ledger grows"
        _refuse(
            f"{run.name} has not ended",
            f"state {state}",
            rule,
            f"paceline runs stop {quote(run.name)}, or wait",
        )
    if not run.manifest:
        rule = "the manifest says on what machine a run ran"
        _refuse(
            f"{run.name} has no manifest", f"state {state}, no manifest.json that reads", rule, "another run"
        )
    if records.read(run.folder, 2) is None:
        rule = (
            "a run is compared with the price of what it trained, which its record of the phase compute says"
        )
        _refuse(
            f"{run.name} ended before it trained", f"state {state}, no record of compute", rule, "another run"
        )
    if not read_ranks(run.folder):
        rule = "the ledger, ledger/rank-*.jsonl, says what each part of a step took"
        _refuse(f"{run.name} has no ledger", f"state {state}, no line of a ledger", rule, "another run")


def _refuse(message: str, seen: str, rule: str, use: str) -> NoReturn:
    raise Refused(message, exit_code=Exit.USAGE, key="--from", seen=seen, rule=rule, use=use)

"""``plan --score``: a table of measured runs, predicted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.target import check_target

if TYPE_CHECKING:
    from paceline.plan.score.score import Score


def score(
    runs: str | Path,
    *,
    calibrate: str | Path | None = None,
    out: str | Path | None = None,
    anchors: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Score:
    """Predict every run of a table from others, and compare where it was measured.

    Args:
        runs: a CSV file; columns as in ``docs/plan-accuracy.md``, blank where not known.
        calibrate: runs that may be learnt from; default the packaged open tables.
        out: file for the predictions, one row a run.
        anchors: how many measured runs of its own (model, cluster, program) group a prediction may use.
        say: gets a line when something takes seconds.

    Raises:
        Refused: exit 2, a table that cannot be read, or nothing in it, or ``out`` is one of the tables.
        Failed: exit 55, ``out`` cannot be written.
    """
    from paceline.plan.published.runs import read_runs
    from paceline.plan.score.score import score as scored

    target = Path(out) if out is not None else None
    if target is not None:
        _check(target, [Path(file) for file in (runs, calibrate) if file is not None])
    table = read_runs([Path(runs)], "--score")
    if not table:
        raise Refused(
            f"{runs} holds no runs",
            exit_code=Exit.USAGE,
            key="--score",
            seen=f"{runs}: a header and nothing below it",
            rule="one run a row",
            use="a CSV table with the columns of docs/plan-accuracy.md",
        )
    learn_from = read_runs([Path(calibrate)], "--calibrate") if calibrate is not None else None
    found = scored(table, learn_from=learn_from, anchors=anchors, say=say)
    if target is not None:
        found.write(target)
    return found


def _check(target: Path, read: list[Path]) -> None:
    if not target.absolute().parent.is_dir():
        raise Refused(
            f"{target} cannot be written",
            exit_code=Exit.USAGE,
            key="--out",
            seen=f"no folder {target.absolute().parent}",
            rule="the folder of --out is there",
            use=f"--out {target.name}",
        )
    check_target(target, "--out", read)

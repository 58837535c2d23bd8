"""``pl.compare``: what differs between runs, and what each difference of result is attributed to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.api.runs import Run
from paceline.ledger.outcome import Exit, Refused

if TYPE_CHECKING:
    from paceline.evidence.compare import Comparison


def compare(*runs: Run | str | Path) -> Comparison:
    """Compares two or more runs; a name may be a run, its folder or its name.

    Raises:
        Refused: (2) fewer than two runs.
    """
    from paceline.evidence.compare import compare as compare_folders

    found = [run if isinstance(run, Run) else Run(run) for run in runs]
    if len(found) < 2:
        raise Refused(
            "compare needs two runs",
            exit_code=Exit.USAGE,
            key="RUN",
            seen=", ".join(run.name for run in found) or "none",
            rule="a comparison is between two or more different runs",
            use="paceline runs, then paceline compare with two names of its list",
        )
    return compare_folders([run.folder for run in found])

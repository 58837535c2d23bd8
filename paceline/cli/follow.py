"""A log as it grows (``logs -f``), until its run ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.api.runs import Run
from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.status import LIVE_STATES

POLL_S = 0.2


def lines_of(path: Path, state: Callable[[], str], *, poll_s: float = POLL_S) -> Iterator[str]:
    """Complete lines of the file, now and as they come; ends when the run has ended and all was read."""
    rest = b""
    offset = 0
    while True:
        ended = state() not in LIVE_STATES  # asked before reading, so that the last lines are not missed
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                new = file.read()
            offset += len(new)
            *whole, rest = (rest + new).split(b"\n")
            yield from (line.decode("utf-8", "replace").rstrip("\r") for line in whole)
        if ended:
            if rest:
                yield rest.decode("utf-8", "replace")
            return
        time.sleep(poll_s)


def refuse_absent_log(run: Run, path: Path, rank: int | None) -> Refused:
    """There is no such log; names the ranks that have one."""
    ranks = sorted(int(p.stem.split("-")[1]) for p in run.folder.logs.glob("rank-*.log"))
    return Refused(
        f"{run.name} has no log of rank {rank}" if rank is not None else f"{run.name} has no console log",
        exit_code=Exit.USAGE,
        key="--rank" if rank is not None else "RUN",
        seen=str(path),
        rule="a rank that ran has a log; `single` prints to the console",
        allowed=" ".join(map(str, ranks)),
        use=f"paceline logs {run.path}" + (f" --rank {ranks[0]}" if ranks and rank is None else ""),
    )

"""A repair names the job and the run that it is about: what was typed, not the words JOB and RUN.

Who raises often knows neither: a rank knows no job file, the launcher no run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from paceline.ledger.folder import RunFolder
from paceline.ledger.outcome import PacelineError

if TYPE_CHECKING:
    from paceline.job import Job


@dataclass
class Names:
    """What the words stand for; an empty job is one that was made in Python.

    Attributes:
        job: as typed, with the flags that find the run again. run: its folder, once there is one.
        again: the command that does this once more; empty = training goes on with ``--resume``.
    """

    job: str
    run: RunFolder | None = None
    again: str = ""

    def filled(self, use: str) -> str:
        """``use`` with the words replaced, as far as they are known."""
        if self.again:
            use = use.replace("paceline train JOB --resume", self.again).replace(
                "; then --resume", f"; then {self.again}"
            )
            if use.startswith("--name "):  # of train alone
                use = use.replace("--name ", "--set run.name=", 1)
        run = "" if self.run is None else quote(str(self.run.path))
        known = {"JOB": self.job or run, "RUN": run}
        return re.sub(r"\b(JOB|RUN)\b", lambda found: known[found[0]] or found[0], use)


@contextmanager
def names_in_repairs(job: Job | str | Path, *, flags: str = "", again: str = "") -> Iterator[Names]:
    """Inside, whatever is raised is told with names; set :attr:`Names.run` as soon as the folder exists.

    Args:
        job: as given. flags: what it was given with, to find the run by.
        again: a command to do this once more, without the job and flags.
    """
    word = quote(str(job)) + flags if isinstance(job, str | Path) else ""
    names = Names(word, again=f"{again} {word}".strip() if again and word else "")
    try:
        yield names
    except PacelineError as error:
        error.use = names.filled(error.use)
        raise

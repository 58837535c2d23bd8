"""Runs the cases of a proof in rank processes: all of one number of ranks in one launch, since starting costs seconds.

A case that kills its ranks, or that they refuse, is that case's result; the cases after it go on in a new launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.launch.local import run_ranks
from paceline.launch.signals import Stopper
from paceline.ledger.outcome import PacelineError, Preempted
from paceline.recipes.case import Case

ENTRY = "paceline.recipes.prove:run"
"""What a rank runs. Tests that plant a fault name an entry of their own, which plants it and then calls this one:
there is no switch for faults in the product."""

CASES_A_LAUNCH = 10
"""torch leaks threads and descriptors with every set of groups: ranks are renewed after so many cases."""

Report = dict[str, Any]


@dataclass
class Outcome:
    """What became of a case: the ranks' reports by rank, or the error that ended them."""

    case: Case
    reports: list[Report] = field(default_factory=list)
    error: PacelineError | None = None


@dataclass
class Trials:
    """Where and how cases run.

    Attributes:
        logs: folder of the ranks' logs. device: ``run.device`` of the job. cores: shared by the ranks.
        hang_timeout_s: how long nothing may move.
        stop: polled; a reason ends everything.
    """

    logs: Path
    device: str
    cores: int
    hang_timeout_s: float
    stop: Callable[[], str | None] = lambda: None
    launches: int = 0

    def run(
        self, cases: Sequence[Case], told: Callable[[Outcome], None] = lambda outcome: None
    ) -> list[Outcome]:
        """Outcomes in the order of ``cases``; ``told`` of each as soon as it is known.

        Raises:
            SystemExit: 130 or 143, the user stopped it.
        """
        outcomes = {case.name: Outcome(case) for case in cases}
        with Stopper(self.stop) as stopper:
            for size in sorted({case.world_size for case in cases}):
                left = [case for case in cases if case.world_size == size]
                while left:
                    done = self._launch(left[:CASES_A_LAUNCH], size, outcomes, told, stopper)
                    left = left[done:]
        return [outcomes[case.name] for case in cases]

    def _launch(
        self,
        cases: Sequence[Case],
        size: int,
        outcomes: dict[str, Outcome],
        told: Callable[[Outcome], None],
        stop: Callable[[], str | None],
    ) -> int:
        """One launch of ``size`` ranks; how many of the cases are done after it."""
        done = 0

        def heard(rank: int, row: dict[str, Any]) -> None:
            nonlocal done
            if row.get("kind") != "case":
                return
            outcome = outcomes[row["name"]]
            outcome.reports.append(row)
            if len(outcome.reports) == size:
                outcome.reports.sort(key=lambda report: int(report["rank"]))
                done += 1
                told(outcome)

        try:
            run_ranks(
                ENTRY,
                {"cases": [asdict(case) for case in cases], "device": self.device},
                world_size=size,
                logs=self.logs,
                threads_per_rank=max(1, self.cores // size),
                timeout_s=0.8 * self.hang_timeout_s,
                hang_timeout_s=self.hang_timeout_s,
                on_message=heard,
                stop=stop,
                attempt=self._next(),
            )
        except Preempted as error:
            raise SystemExit(143 if "SIGTERM" in error.message else 130) from error
        except PacelineError as error:
            if stop() is not None:  # a rank that stopped leaves its peers with a broken connection
                raise SystemExit(143 if stop() == "SIGTERM" else 130) from error
            broken = outcomes[cases[done].name]
            broken.error, broken.reports = error, []
            told(broken)
            return done + 1
        return done

    def _next(self) -> int:
        self.launches += 1
        return self.launches - 1

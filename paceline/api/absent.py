"""What the interface names and this version does not have: refused by name, never ignored.

The capabilities are the interface's numbers; commands, options and functions share this one refusal.
"""

from __future__ import annotations

from typing import Any, NoReturn

from paceline.ledger.outcome import Exit, Refused

CAPABILITY = {
    "02": "every axis, and proof",
    "03": "the planner against measurement",
    "04": "recovery",
    "05": "accounting",
    "06": "Hugging Face models and data",
    "07": "slow links and federation",
    "08": "launchers",
}


def not_here(what: str, capability: str, *, use: str = "") -> Refused:
    """The refusal of a command, option, value or function that has not arrived."""
    return Refused(
        f"{what} is not in this version",
        exit_code=Exit.USAGE,
        seen=what,
        rule=f"it arrives with capability {capability} ({CAPABILITY[capability]}); until then it is refused",
        use=use or "paceline --help",
    )


def claim(*args: Any, **kwargs: Any) -> NoReturn:
    """Does distributing pay? Not in this version."""
    raise not_here("pl.claim", "05", use="pl.plan(job).reason says whether distributing should pay")


def evaluate(*args: Any, **kwargs: Any) -> NoReturn:
    """Held-out loss of a run on any data. Not in this version: ``train`` evaluates on the held-out part."""
    raise not_here("pl.evaluate", "06", use='Run.metrics("eval") has the evaluations that train made')


def diagnose(*args: Any, **kwargs: Any) -> NoReturn:
    """Backward from a bad outcome to the first broken assumption. Not in this version."""
    raise not_here("pl.diagnose", "05", use="Run.report() has the losses, the times and the events")

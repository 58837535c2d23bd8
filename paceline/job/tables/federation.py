"""``[federation]``: sites that keep their data. Not in this version."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Duration


def _key(default: Any, meaning: str, form: str = "", shown: str = "", group: str = "", **limits: Any) -> Any:
    return key(default, meaning, form=form, shown=shown, group=group, arrives="07", **limits)


class PrivacyTable(Table):
    """Present means differential privacy; the noise is derived, never typed."""

    epsilon: float | None = _key(None, "privacy budget", "float", gt=0)
    delta: float | None = _key(None, "probability that the budget does not hold", "float", gt=0, lt=1)
    clip_norm: float | None = _key(None, "norm of one site's update", "float", gt=0)


class SimulateTable(Table):
    """Simulation on one machine only."""

    sites: int = _key(5, "number of simulated sites", "int", ge=1)
    partition: str = _key("iid", "iid, dirichlet:A or column:NAME", "str")


class FederationTable(Table):
    """``federate`` reads this table and not ``train.steps``."""

    rounds: int = _key(10, "rounds of agreement", "int", ge=1)
    local_epochs: float | None = _key(None, "passes of a site in a round", "float", "1", "local", gt=0)
    local_steps: int | None = _key(None, "steps of a site in a round", "int", "–", "local", ge=1)
    strategy: Literal["fedavg", "fedprox", "fedadam", "fedyogi", "median", "trimmed_mean", "krum"] = _key(
        "fedavg", "how updates are joined"
    )
    min_sites: int = _key(2, "sites that a round needs", "int", ge=1)
    round_timeout: Duration = _key(3600.0, "longest round", "Duration", '"1h"', gt=0)
    secure_aggregation: bool = _key(False, "the server sees only the sum", "bool")
    privacy: PrivacyTable = Field(default_factory=PrivacyTable, description="differential privacy")
    simulate: SimulateTable = Field(default_factory=SimulateTable, description="simulated sites")

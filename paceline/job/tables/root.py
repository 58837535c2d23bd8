"""The job file as a whole: its tables, in the order of interface §3."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from paceline.job.tables.checkpoint import CheckpointTable
from paceline.job.tables.claim import ClaimTable
from paceline.job.tables.cluster import ClusterTable
from paceline.job.tables.control import ControlTable
from paceline.job.tables.data import DataTable
from paceline.job.tables.evaluation import EvalTable
from paceline.job.tables.federation import FederationTable
from paceline.job.tables.launch import LaunchTable
from paceline.job.tables.layout import LayoutTable
from paceline.job.tables.limits import LimitsTable, RolloutTable
from paceline.job.tables.lora import LoraTable
from paceline.job.tables.model import ModelTable
from paceline.job.tables.optimizer import OptimizerTable
from paceline.job.tables.restart import RestartTable
from paceline.job.tables.run import RunTable
from paceline.job.tables.table import Table, key
from paceline.job.tables.track import TrackTable
from paceline.job.tables.train import TrainTable
from paceline.job.tables.update import UpdateTable


def whole(meaning: str) -> Any:
    """A table that is always there: an empty one, filled with its defaults by the validator of the whole job.

    As ``default_factory=RunTable`` it would say the same, and build a validator for each table on its own, which
    is a tenth of the time of ``paceline plan``.
    """
    return Field(default_factory=dict, validate_default=True, description=meaning)


class Tables(Table):
    """Every table. One that has not arrived is None, so that its defaults cannot be read by mistake."""

    extends: str | None = key(None, "base job; this file overrides it", form="path")
    run: RunTable = whole("name and folders of the run")
    model: ModelTable = whole("what is trained")
    lora: LoraTable | None = Field(None, description="low-rank adapters")
    data: DataTable = whole("what it is trained on")
    train: TrainTable = whole("how long, how much")
    optimizer: OptimizerTable = whole("how gradients become weights")
    eval: EvalTable = whole("held-out evaluation")
    cluster: ClusterTable = whole("the machines that the plan assumes")
    layout: LayoutTable = whole("how the work is cut")
    update: UpdateTable = whole("when gradients become weights")
    federation: FederationTable | None = Field(None, description="sites that keep their data")
    checkpoint: CheckpointTable = whole("what survives")
    restart: RestartTable = whole("what happens after a failure")
    track: TrackTable = whole("where numbers go")
    control: dict[str, ControlTable] | None = Field(None, description="rules on metrics")
    claim: ClaimTable | None = Field(None, description="what distributing should gain")
    limits: LimitsTable | None = Field(None, description="what a run may use up")
    rollout: RolloutTable | None = Field(None, description="how a new layout is adopted")
    launch: LaunchTable | None = Field(None, description="what an engine needs to know")

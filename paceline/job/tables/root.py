"""The job file as a whole: its tables, in the order of interface §3."""

from __future__ import annotations

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


class Tables(Table):
    """Every table. One that has not arrived is None, so that its defaults cannot be read by mistake."""

    extends: str | None = key(None, "base job; this file overrides it", form="path")
    run: RunTable = Field(default_factory=RunTable, description="name and folders of the run")
    model: ModelTable = Field(default_factory=ModelTable, description="what is trained")
    lora: LoraTable | None = Field(None, description="low-rank adapters")
    data: DataTable = Field(default_factory=DataTable, description="what it is trained on")
    train: TrainTable = Field(default_factory=TrainTable, description="how long, how much")
    optimizer: OptimizerTable = Field(
        default_factory=OptimizerTable, description="how gradients become weights"
    )
    eval: EvalTable = Field(default_factory=EvalTable, description="held-out evaluation")
    cluster: ClusterTable = Field(
        default_factory=ClusterTable, description="the machines that the plan assumes"
    )
    layout: LayoutTable = Field(default_factory=LayoutTable, description="how the work is cut")
    update: UpdateTable = Field(default_factory=UpdateTable, description="when gradients become weights")
    federation: FederationTable | None = Field(None, description="sites that keep their data")
    checkpoint: CheckpointTable = Field(default_factory=CheckpointTable, description="what survives")
    restart: RestartTable = Field(default_factory=RestartTable, description="what happens after a failure")
    track: TrackTable = Field(default_factory=TrackTable, description="where numbers go")
    control: dict[str, ControlTable] | None = Field(None, description="rules on metrics")
    claim: ClaimTable | None = Field(None, description="what distributing should gain")
    limits: LimitsTable | None = Field(None, description="what a run may use up")
    rollout: RolloutTable | None = Field(None, description="how a new layout is adopted")
    launch: LaunchTable | None = Field(None, description="what an engine needs to know")

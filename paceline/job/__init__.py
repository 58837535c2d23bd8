"""What the user asks for: the job file's schema, strict, every key documented. No torch."""

from paceline.job.interval import Interval
from paceline.job.job import Job
from paceline.job.load import Loaded, load
from paceline.job.presets import ModelWidths
from paceline.job.sources import SourceItem
from paceline.job.tables.checkpoint import CheckpointTable
from paceline.job.tables.cluster import ClusterTable
from paceline.job.tables.data import DataTable
from paceline.job.tables.evaluation import EvalTable
from paceline.job.tables.layout import LayoutTable
from paceline.job.tables.model import ModelTable
from paceline.job.tables.optimizer import OptimizerTable
from paceline.job.tables.restart import RestartTable
from paceline.job.tables.run import RunTable
from paceline.job.tables.track import TrackTable
from paceline.job.tables.train import TrainTable

__all__ = [
    "CheckpointTable",
    "ClusterTable",
    "DataTable",
    "EvalTable",
    "Interval",
    "Job",
    "LayoutTable",
    "Loaded",
    "ModelTable",
    "ModelWidths",
    "OptimizerTable",
    "RestartTable",
    "RunTable",
    "SourceItem",
    "TrackTable",
    "TrainTable",
    "load",
]

"""``[launch]``: what an engine needs to know beside the job. Not in this version."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Settings, Strings


def _key(default: Any, meaning: str, form: str = "str", shown: str = "–") -> Any:
    return key(default, meaning, form=form, shown=shown, arrives="08")


class SlurmTable(Table):
    """Written as ``#SBATCH`` lines."""

    partition: str | None = _key(None, "partition")
    account: str | None = _key(None, "account")
    qos: str | None = _key(None, "quality of service")
    time: str | None = _key(None, "time limit")
    container: str | None = _key(None, "container image")
    options: Strings = _key((), "raw #SBATCH lines", "list of lines")


class KubernetesTable(Table):
    """Written into the manifest."""

    kind: Literal["trainjob", "jobset", "pytorchjob"] | None = _key(None, "kind of the resource", "")
    image: str | None = _key(None, "container image")
    namespace: str | None = _key(None, "namespace")
    queue: str | None = _key(None, "queue")
    volume: str | None = _key(None, "volume of data and runs")


class TorchrunTable(Table):
    """Rendezvous of torchrun."""

    endpoint: str | None = _key(None, "host:port of the rendezvous")


class RayTable(Table):
    """An existing Ray cluster."""

    address: str | None = _key(None, "address of the cluster")


class MpiTable(Table):
    """Command line of mpirun."""

    flavor: str | None = _key(None, "openmpi, mpich or intel")
    hostfile: str | None = _key(None, "hosts", "path")


class SkyTable(Table):
    """SkyPilot."""

    cloud: str | None = _key(None, "cloud")
    region: str | None = _key(None, "region")
    spot: bool | None = _key(None, "spot machines", "bool")


class LaunchTable(Table):
    """The same in every artefact, then one table an engine."""

    setup: Strings = _key((), "shell lines before the run", "list of shell lines", "[]")
    env: Settings = _key({}, "environment of the ranks", "table", "{}")
    slurm: SlurmTable = Field(default_factory=SlurmTable, description="SLURM")
    kubernetes: KubernetesTable = Field(default_factory=KubernetesTable, description="Kubernetes")
    torchrun: TorchrunTable = Field(default_factory=TorchrunTable, description="torchrun")
    ray: RayTable = Field(default_factory=RayTable, description="Ray")
    mpi: MpiTable = Field(default_factory=MpiTable, description="MPI")
    sky: SkyTable = Field(default_factory=SkyTable, description="SkyPilot")

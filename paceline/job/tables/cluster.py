"""``[cluster]``: the machines that the plan assumes."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from paceline.job.quantities import QuantityError
from paceline.job.tables.table import Table, key
from paceline.job.tables.types import Bytes, Duration, Rate

FROM_USE = "from use"


def _carries(bytes_per_s: float) -> float:
    """Held to the same rule whatever the number of devices: a job outlives the cluster that it was planned on."""
    if bytes_per_s <= 0:
        rule = "a link carries more than 0 bytes a second; where nothing is sent, as with one device, leave the key out"
        raise QuantityError(rule, use='"450GB"')
    return bytes_per_s


LinkRate = Annotated[Rate, AfterValidator(_carries)]


class LinkTable(Table):
    """One direction, per device."""

    intra: LinkRate | None = key(
        None, "between devices of a host", form="Rate", unit="/s", shown=FROM_USE, gt=0
    )
    inter: LinkRate | None = key(None, "between hosts", form="Rate", unit="/s", shown=FROM_USE, gt=0)


class LatencyTable(Table):
    """Time of an empty message."""

    inter: Duration | None = key(None, "between hosts", form="Duration", shown=FROM_USE, gt=0)


class ClusterTable(Table):
    """A name of the catalogue, a shape, a file, or this machine; single values override it."""

    use: str = key(
        "this", "[HOSTSx]DEVICESxACCELERATOR, SHAPE[xHOSTS], this, or FILE.toml", form="str", min_length=1
    )
    hosts: int | None = key(None, "number of hosts", form="int", shown=FROM_USE, ge=1, le=2**20)
    devices: int | None = key(None, "devices per host", form="int", shown=FROM_USE, ge=1, le=2**16)
    accelerator: str | None = key(None, "name of the device", form="str", shown=FROM_USE, min_length=1)
    memory: Bytes | None = key(None, "memory per device", form="Bytes", shown=FROM_USE, gt=0)
    link: LinkTable = Field(default_factory=LinkTable, description="bandwidth of the links")
    latency: LatencyTable = Field(default_factory=LatencyTable, description="latency of the links")
    usd_per_device_hour: float | None = key(
        None, "price", form="float", unit="USD", shown="catalogue, dated", ge=0
    )
    device_mtbf: Duration | None = key(
        None,
        "mean time between failures of one device",
        form="Duration",
        shown="50 700 h of an accelerator, none of a CPU",
        gt=0,
    )

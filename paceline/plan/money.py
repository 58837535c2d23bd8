"""What a run costs, part by part: initial and power of one's own cluster, rent and egress of a rented one.

Prices are stated or of a dated table. A part that nobody stated is not zero: it is left out, and :func:`unknown`
says so. Hours and devices may be columns.
"""

from __future__ import annotations

import re

from paceline.plan.cluster import GB, Cluster
from paceline.plan.columns import Column


def paid_devices(cluster: Cluster, world: Column) -> Column:
    """Devices that are paid while ``world`` work: a cloud's machine is rented whole, idle devices and all."""
    if cluster.rate is None:
        return world
    return -(-world // cluster.devices) * cluster.rented_devices


def usd_parts(cluster: Cluster, hours: Column, world: Column, moved_bytes: float) -> dict[str, Column]:
    """``initial`` and ``power``, or ``rent`` and ``egress``; without those that are not known.

    Args:
        hours: of the run. world: devices that work. moved_bytes: what leaves the cloud in the end.
    """
    if cluster.own is not None:
        return _own_parts(cluster, hours, world)
    if cluster.usd_per_device_hour is None:
        return {}
    parts = {"rent": hours * paid_devices(cluster, world) * cluster.usd_per_device_hour}
    if cluster.rate is not None:
        parts["egress"] = moved_bytes / GB * cluster.rate.egress_usd_per_gb
    return parts


def _own_parts(cluster: Cluster, hours: Column, world: Column) -> dict[str, Column]:
    own = cluster.own
    assert own is not None, "asked of a rented cluster"
    parts: dict[str, Column] = {}
    each, hourly = own.usd_each, own.usd_initial_per_hour
    power = own.usd_power_per_device_hour(cluster.accelerator.tdp_w)
    if each is not None:
        parts["initial"] = each
    elif hourly is not None:  # nobody else uses it meanwhile, so the whole cluster ages
        parts["initial"] = hourly * hours
    if power is not None:
        parts["power"] = power * world * hours
    return parts


def usd(cluster: Cluster, hours: Column, world: Column, moved_bytes: float) -> Column | None:
    """The sum of what is known; None when nothing is."""
    parts = usd_parts(cluster, hours, world, moved_bytes)
    return sum(parts.values()) if parts else None


def weight(cluster: Cluster, world: Column) -> Column:
    """What a second costs, in devices: what the objective ``cost`` multiplies a step's seconds with.

    At least ``world``, so that the search's bounds, which count the devices that work, stay bounds.
    """
    own = cluster.own
    if own is None:
        return paid_devices(cluster, world)
    hourly, power = own.usd_initial_per_hour, own.usd_power_per_device_hour(cluster.accelerator.tdp_w)
    if hourly is not None and power:
        return world + hourly / power
    # Bought devices are no cheaper idle, and the run holds the cluster that others wait for: the soonest done.
    return world * 0 + cluster.world


def unknown(cluster: Cluster) -> list[str]:
    """What the cost rests on that was not stated, or is not in it: for the line ``assumed``."""
    if cluster.own is not None:
        return _own_unknown(cluster)
    if cluster.rate is None:
        return []
    rate = cluster.rate
    if "memory" in rate.source:
        note = f"{rate.shape}'s price is remembered, not read: check it"
    else:
        source = re.split(r"[:;]", rate.source)[0]
        note = f"{rate.shape} on demand in {rate.region}, {rate.date} ({source})"
    spot = rate.spot_usd_per_hour
    spots = f"spot was {1 - spot / rate.usd_per_hour:.0%} less".replace("%", " %") if spot else ""
    return [
        f"{note}; {spots}, and may be taken back" if spots else note,
        "the trained weights leave the cloud once, data and checkpoints never: storage is not counted",
    ]


def _own_unknown(cluster: Cluster) -> list[str]:
    own = cluster.own
    assert own is not None
    said = []
    if own.usd_initial is None:
        said.append("own.usd_initial not stated: the cluster itself is not in the cost")
    if own.usd_per_kwh is None:
        said.append("own.usd_per_kwh not stated: power is not in the cost")
    elif own.watts_per_device is None:
        tdp = cluster.accelerator.tdp_w
        known = (
            f"{tdp:g} W a device, the data sheet's, without its host" if tdp else "unknown: not in the cost"
        )
        said.append(f"own.watts_per_device not stated: power is {known}")
    if own.usd_per_kwh is not None and own.pue is None:
        said.append("own.pue not stated: cooling is not in the power")
    return [
        *said,
        "people, room and network of one's own are in the cost only where own.usd_initial has them",
    ]

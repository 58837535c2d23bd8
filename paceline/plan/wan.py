"""Links between regions: bandwidth, latency, and what a GB costs to leave (``catalog/clouds/wan.toml``).

Regions are ``CLOUD:REGION``: ``aws:us-east-1``, ``gcp:europe-west4``. Between two clouds the bytes leave for the
internet, at that price.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

from paceline.ledger.outcome import Exit, Refused
from paceline.plan.rates import GB, NAMES, read_table


@dataclass(frozen=True)
class WanLink:
    """From one region to another, one direction; typical figures, not a promise.

    Attributes:
        distance: ``region`` (its zones), ``continent`` or ``world``.
        flow_bytes_per_s: of one connection. host_bytes_per_s: of one host with many.
        latency_s: of one message, half of a message and its answer.
    """

    distance: str
    flow_bytes_per_s: float
    host_bytes_per_s: float
    latency_s: float
    egress_usd_per_gb: float
    source: str


def wan_link(here: str, there: str) -> WanLink:
    """The link that leaves ``here`` for ``there``.

    Raises:
        Refused: 2, a cloud or region that the table does not know.
    """
    (cloud, region, continent), (other, away, far) = _place(here), _place(there)
    distance = "region" if (cloud, region) == (other, away) else "continent" if continent == far else "world"
    row = _wan()["distance"][distance]
    price = _wan()["egress_usd_per_gb"][cloud][distance] if cloud == other else internet_usd_per_gb(cloud)
    return WanLink(
        distance=distance,
        flow_bytes_per_s=row["flow_gbit_per_s"] * GB / 8,
        host_bytes_per_s=row["host_gbit_per_s"] * GB / 8,
        latency_s=row["round_trip_ms"] / 2e3,
        egress_usd_per_gb=price,
        source=row["source"],
    )


def internet_usd_per_gb(cloud: str) -> float:
    """For a GB that leaves a cloud (``AWS``, ``GCP``, ``Azure``) for elsewhere."""
    return float(read_table(cloud.lower())["egress"]["usd_per_gb"])


@cache
def _wan() -> dict[str, Any]:
    return read_table("wan")


def _place(text: str) -> tuple[str, str, str]:
    """(cloud, region, continent) of ``aws:us-east-1``."""
    name, _, region = text.strip().lower().partition(":")
    by_name = {cloud.lower(): cloud for cloud in _wan()["continents"]}
    if name not in by_name:
        _refuse(text, f"{name or text} is no cloud of the table", ", ".join(NAMES), "aws:us-east-1")
    continents = _wan()["continents"][by_name[name]]
    for continent, beginnings in continents.items():
        if any(region.startswith(start) for start in beginnings):
            return by_name[name], region, continent
    known = ", ".join(start for starts in continents.values() for start in starts)
    example = {"aws": "us-east-1", "gcp": "us-central1"}.get(name, "eastus")
    _refuse(text, f"{region or 'no region'} is no region of {by_name[name]}", known, f"{name}:{example}")


def _refuse(seen: str, message: str, allowed: str, use: str) -> NoReturn:
    raise Refused(
        message,
        exit_code=Exit.USAGE,
        key="region",
        seen=seen,
        rule="a region is CLOUD:REGION, and its name begins as one of the cloud's do",
        allowed=allowed,
        use=use,
    )

"""What clouds ask for a machine by the hour, with region, date and source: ``catalog/clouds/``.

A rented machine is paid whole, whatever part of it works. The accelerators' own prices (``catalog/*.toml``) are
another market: rented by the device, wherever that was cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

CLOUDS = Path(__file__).parent / "catalog" / "clouds"
NAMES = ("aws", "gcp", "azure")
GB = 1e9


@dataclass(frozen=True)
class Rate:
    """Of one shape in one region.

    Attributes:
        usd_per_hour: on demand, of the whole machine. spot_usd_per_hour: while the cloud does not take it back.
        nic_bytes_per_s: of one device, one direction.
        egress_usd_per_gb: of what leaves the cloud for the internet.
    """

    shape: str
    cloud: str
    usd_per_hour: float
    region: str
    date: str
    source: str
    nic_bytes_per_s: float
    egress_usd_per_gb: float
    spot_usd_per_hour: float | None = None


@cache
def rates() -> dict[str, Rate]:
    """Every shape that a cloud's table has, by name."""
    found: dict[str, Rate] = {}
    for name in NAMES:
        found.update(_table(name))
    return found


def _table(name: str) -> dict[str, Rate]:
    data = read_table(name)
    cloud, egress = data["cloud"], data["egress"]["usd_per_gb"]
    return {
        shape: Rate(
            shape=shape,
            cloud=cloud,
            usd_per_hour=row["usd_per_hour"],
            region=row["region"],
            date=row["date"],
            source=row["source"],
            nic_bytes_per_s=row["nic_gbit_per_s"] * GB / 8,
            egress_usd_per_gb=egress,
            spot_usd_per_hour=row.get("spot_usd_per_hour"),
        )
        for shape, row in data.items()
        if isinstance(row, dict) and "usd_per_hour" in row
    }


def read_table(name: str) -> dict[str, Any]:
    """A file of ``catalog/clouds/`` as it is."""
    import tomllib

    return tomllib.loads((CLOUDS / f"{name}.toml").read_text(encoding="utf-8"))

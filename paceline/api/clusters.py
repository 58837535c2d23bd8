"""Hardware by name: the catalogue as rows, and one cluster as facts with where each is from."""

from __future__ import annotations

from typing import Any

from paceline.api.plan import measured_here, resolve_cluster

GIB = float(1 << 30)


def listing() -> list[dict[str, Any]]:
    """Every accelerator and machine shape of the catalogue."""
    from paceline.plan.cluster import catalogue, parse_cluster, shapes

    rows = [_row(name, name, sheet) for name, sheet in sorted(catalogue().items())]
    for name, what in sorted(shapes().items()):
        cluster = parse_cluster(name)
        price = {"usd_per_device_hour": cluster.usd_per_device_hour}
        rows.append(_row(name, what, cluster.accelerator) | price)
    return rows


def names() -> list[str]:
    """What ``--cluster`` may begin with: shapes, and accelerators eight to a host."""
    from paceline.plan.cluster import catalogue, shapes

    return ["this", *sorted(shapes()), *(f"8x{name}" for name in sorted(catalogue()))]


def describe(name: str) -> dict[str, Any]:
    """The facts of one cluster; ``this`` says whether the machine was measured."""
    cluster = resolve_cluster(name)
    sheet, rate = cluster.accelerator, cluster.rate
    measured = measured_here() if cluster.visible else None
    return {
        "name": cluster.name,
        "hosts": cluster.hosts,
        "devices": cluster.devices,
        "accelerator": f"{sheet.name} {cluster.cpu_model}".strip(),
        "memory_gib": round(cluster.memory_bytes / GIB, 1),
        "memory_of": "the host, shared by its ranks" if cluster.is_cpu else "each device",
        "peak_tflops": {k: round(v / 1e12, 1) for k, v in sheet.peak_flops.items()},
        "link": sheet.link,
        "link_gb_per_s": round(cluster.link_bytes_per_s / 1e9, 1) or None,
        "network_gbit_per_s": round(cluster.nic_bytes_per_s * 8 / 1e9, 1) or None,
        "pods": None
        if cluster.fabric is None
        else f"{cluster.fabric.pod_hosts} hosts, {cluster.fabric.oversubscription:g}:1",
        "usd_per_device_hour": cluster.usd_per_device_hour,
        "price": f"{rate.cloud} {rate.region} {rate.date}"
        if rate
        else f"{sheet.price_provider} {cluster.price_date}".strip(),
        "source": sheet.source,
        "measured": measured.at if measured else ("not yet: catalogue" if cluster.visible else None),
    }


def _row(name: str, what: str, sheet: Any) -> dict[str, Any]:
    return {
        "name": name,
        "is": what,
        "memory_gb": round(sheet.memory_bytes / 1e9) or None,
        "bf16_tflops": round(sheet.peak_flops["bf16"] / 1e12) if "bf16" in sheet.peak_flops else None,
        "link": sheet.link,
        "usd_per_device_hour": sheet.usd_per_hour,
    }

"""Where a published run ran: its accelerator in the catalogue, its hosts, and the network between them."""

from __future__ import annotations

import re
from dataclasses import replace

from paceline.plan.cluster import Accelerator, Cluster, catalogue, of_accelerator
from paceline.plan.published.runs import Run

HOST = 8
NAMES = {
    "A100": "A100-SXM-80GB",
    "A100-80GB": "A100-SXM-80GB",
    "H100-80GB": "H100-SXM-80GB",
    "H100-SXM-94GB": "H100-SXM-80GB",
    "H100-SXM-96GB": "H100-SXM-80GB",
    "H200": "H200-SXM-141GB",
    "H200-NVL-141GB": "H200-SXM-141GB",
    "H800": "H800-SXM-80GB",
    "A800": "A800-SXM-80GB",
    "V100": "V100-SXM2-32GB",
    "V100-SXM3-32GB": "V100-SXM2-32GB",
    "GH200": "GH200-96GB",
    "RTX-5060-Ti": "",
}
"""Other names of what the catalogue holds; "" where it would be another device."""
OMNI_PATH_GBIT = 100
GBIT = 1e9 / 8


def accelerator_of(run: Run) -> Accelerator | None:
    """By name; None when the catalogue does not have it."""
    text = run.gpu_type.partition(" (")[0].strip().replace(" ", "-")
    by_name = {name.lower(): sheet for name, sheet in catalogue().items()}
    known = NAMES.get(text, text).lower()
    if known in by_name:
        return by_name[known]
    fits = [sheet for name, sheet in by_name.items() if known and name.startswith(f"{known}-")]
    sxm = [sheet for sheet in fits if "SXM" in sheet.name]
    return (sxm or fits)[-1] if fits else None


def cluster_of(run: Run, sheet: Accelerator, assumed: list[str]) -> Cluster:
    """Hosts of the run's devices; a network that the row states replaces the catalogue's."""
    devices = run.n_gpus or 1
    on_host = run.gpus_per_node
    if on_host is None:
        on_host = min(HOST, devices)
        if devices > 1:
            assumed.append(f"gpus_per_node={on_host}")
    on_host = min(on_host, devices)
    found = of_accelerator(run.gpu_type, -(-devices // on_host), on_host, sheet)
    stated = host_network(run.inter_node_link)
    return replace(found, nic_bytes_per_s=stated / on_host) if stated else found


def host_network(text: str) -> float:
    """Bytes a second of one host's network, one direction, from a source's words; 0 where they do not say."""
    many = re.search(r"(\d+)\s*x\s*(\d+)\s*G(?:b|bps|bit)", text)
    if many:
        return int(many[1]) * int(many[2]) * GBIT
    paths = re.search(r"(\d+) OmniPath", text)
    if paths:
        return int(paths[1]) * OMNI_PATH_GBIT * GBIT
    one = re.search(r"(\d+)\s*G(?:b|bps|bit)", text)
    return int(one[1]) * GBIT if one else 0.0

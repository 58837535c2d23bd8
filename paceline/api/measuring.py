"""``cluster measure``: this machine measured now, kept in the cache, and written as a cluster file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.target import check_target
from paceline.plan.measured import hash_of as hash_of
from paceline.plan.measured import said

if TYPE_CHECKING:
    from paceline.plan.cluster import Cluster


ROUNDS = 3  # asked for by name, a measurement may take a minute and a half; the first `train` takes one round


def measure_cluster(out: str | None, say: Callable[[str, str], None]) -> dict[str, Any]:
    """Measure this machine's matrix products, memory, optimizer, real blocks and its collectives, about 90 s.

    Args:
        out: a cluster file to write (``--cluster FILE.toml``), beside the cache.
        say: headings for the console.

    Returns:
        The figures in short: rates in FLOP/s and bytes/s of one process, seconds of collectives, ``cpu_share`` got.

    Raises:
        Refused: 2, ``out`` is no ``.toml`` file that can be written; 13, the machine computes on CUDA devices, which
            the catalogue prices; 1, the measurement ended without a figure.
    """
    from paceline.api.measure import measure_now
    from paceline.api.surroundings import environment
    from paceline.launch.machine import machine_cluster, probe

    machine = probe(environment())
    cluster = machine_cluster(machine)
    if not cluster.is_cpu:
        raise Refused(
            "CUDA devices are not measured in this version",
            exit_code=Exit.CLUSTER,
            seen=f"{len(machine.devices)} × {machine.devices[0].name}",
            rule="a plan for them takes the catalogue's figures and says so",
            use="CUDA_VISIBLE_DEVICES= paceline cluster measure, for the processors alone",
        )
    file = None if out is None else cluster_file(out)
    found = measure_now(machine, say, ROUNDS)
    if found is None:
        raise Refused("the measurement ended without a figure", exit_code=Exit.FAULT, use="paceline doctor")
    rows = found.to_dict()
    if file is not None:
        write_cluster(file, cluster, rows)
    return _short(machine.cpu_model, machine.cores, rows) | {"file": str(file) if file else None}


def cluster_file(out: str) -> Path:
    """Where ``--out`` writes. Raises: Refused, 2, where no cluster file can lie; Failed, 55, where none is written."""
    path = Path(out).expanduser()
    if path.suffix.lower() == ".toml" and path.absolute().parent.is_dir() and not path.is_dir():
        check_target(path, "--out")
        return path
    raise Refused(
        f"--out {out} is no cluster file",
        exit_code=Exit.USAGE,
        key="--out",
        seen=out,
        rule="it ends in .toml and lies in a folder that is there",
        use="--out lab.toml",
    )


def write_cluster(file: Path, cluster: Cluster, rows: Mapping[str, Any]) -> None:
    """A cluster file of the devices that are here, with what was measured, versions and a hash."""
    import tomli_w

    from paceline import __version__
    from paceline.job.quantities import print_bytes
    from paceline.ledger.atomic import write_text

    table = {
        "use": f"{cluster.devices}x{cluster.accelerator.name}",
        "memory": print_bytes(cluster.memory_bytes),
    }
    versions = {"paceline": __version__, "hash": hash_of(rows)}
    write_text(file, tomli_w.dumps({"cluster": table, "measured": {**versions, **said(rows)}}))


def _short(cpu_model: str, cores: int, rows: Mapping[str, Any]) -> dict[str, Any]:
    best: dict[str, float] = {}
    for row in rows["matmul"]:
        best[row["precision"]] = max(best.get(row["precision"], 0.0), row["flops_per_s"])
    largest = max((row["bytes"] for row in rows["collectives"]), default=0)
    return {
        "machine": f"{cores} cores, {cpu_model}",
        "at": rows["at"],
        "torch": rows["torch"],
        "cpu_share": rows["cpu_share"],
        "flops_per_s": best,
        "bytes_per_s": max((row["bytes_per_s"] for row in rows["stream"]), default=0.0),
        "collective_bytes": largest,
        "collective_s": {
            f"{row['op']} over {row['ranks']}": row["seconds"]
            for row in rows["collectives"]
            if row["bytes"] == largest
        },
        "hash": hash_of(rows),
    }

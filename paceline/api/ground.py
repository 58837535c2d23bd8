"""Everything that is settled before a process starts: the machine measured, the data prepared, the layout planned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import paceline
from paceline.api.jobs import check_layout
from paceline.api.plan import resolve_cluster
from paceline.api.surroundings import cache_folder, environment
from paceline.launch.machine import Machine, probe

if TYPE_CHECKING:
    from paceline.compute.data.prepared import Prepared
    from paceline.job import Job
    from paceline.plan.answer import Plan
    from paceline.plan.cluster import Cluster
    from paceline.plan.measured import Measured

Say = Callable[[str, str], None]


@dataclass(frozen=True)
class Ground:
    """What a run stands on. ``job`` has ``train.precision`` decided, ``plan.layout`` is closed.

    ``asked``: the layout that the plan was asked for, perhaps open.
    """

    job: Job
    machine: Machine
    cluster: Cluster
    measured: Measured | None
    prepared: Prepared
    plan: Plan
    baselines: Mapping[str, Mapping[str, float | None]]
    steps: int
    asked: str = "auto"

    @property
    def threads_per_rank(self) -> int:
        """The ranks of a host share its cores; ``OMP_NUM_THREADS`` may only lower what each gets."""
        return self.threads_of(self.plan.layout.world_size)

    def threads_of(self, world: int) -> int:
        """Threads of one of ``world`` ranks."""
        share = max(1, self.machine.cores // world)
        return min(share, environment().omp_num_threads or share)

    @property
    def peak_flops(self) -> float | None:
        """The rate that one rank's MFU divides by: the planner's own, so that predicted and measured compare."""
        from paceline.plan.search import speeds_of

        speeds = speeds_of(self.cluster, self.measured, self.job.train.precision)
        return speeds.peak_flops(self.plan.layout.world_size) or None

    def hashes(self) -> dict[str, str]:
        """What the manifest and every checkpoint are bound to."""
        return {
            "job": self.job.hash,
            "data": self.prepared.hash,
            "tokenizer": str(self.prepared.index["tokenizer"].get("hash") or "none: token ids"),
            "code": code_hash(),
        }


def settle(
    job: Job,
    layout: str,
    say: Say,
    progress: Callable[[dict[str, Any]], None],
    where: str = "",
    top: int = 5,
) -> Ground:
    """Measure (once a machine), prepare (once a corpus), plan.

    Args:
        job: as loaded.
        layout: ``auto`` or a layout.
        say: headings for the console.
        progress: told how far the preparation is.
        where: the job file, for an error.
        top: candidates that the plan lists.

    Raises:
        Refused: whatever the data (20), the machine (13) or the rule book (10, 11, 12) refuses.
    """
    from paceline.api.measure import measured_or_measure
    from paceline.compute.data.baseline import baselines
    from paceline.compute.data.batches import refuse_before_start
    from paceline.compute.data.prepare import prepare
    from paceline.compute.data.spec import DataSpec
    from paceline.job.untrained import refuse_to_build, refuse_to_load
    from paceline.plan.search import plan

    refuse_to_build(job)
    refuse_to_load(job)
    spec = DataSpec.from_job(job, where)  # before a machine is measured for nothing
    machine = probe(environment())
    cluster = resolve_cluster(job.cluster.use, job.run.device)
    refuse_elsewhere(cluster, job.cluster.use)
    check_layout(job, layout)  # before minutes are spent on what it would refuse anyway
    measured = measured_or_measure(machine, say) if cluster.is_cpu else None
    job = decide_precision(job, measured, cluster)
    prepared = prepare(spec, cache_folder() / "data", progress=progress, workers=machine.cores)
    found = plan(
        job,
        cluster=cluster,
        measured=measured,
        layout=layout,
        top=top,
        tokens=prepared.tokens,
        vocab_size=prepared.vocab,
    )
    steps = refuse_before_start(job, prepared, found.layout.data_degree)
    simple = baselines(prepared)
    return Ground(
        job,
        machine,
        cluster,
        measured,
        prepared,
        found,
        {n: simple[n] for n in ("unigram", "trigram")},
        steps,
        asked=layout,
    )


def decide_precision(job: Job, measured: Measured | None, cluster: Cluster) -> Job:
    """``auto`` becomes the type that the device multiplies faster; any other is the user's."""
    from paceline.plan.measured import fastest_precision

    if job.train.precision != "auto":
        return job
    return job.replace({"train.precision": fastest_precision(measured, cuda=not cluster.is_cpu)})


def refuse_elsewhere(cluster: Cluster, word: str) -> None:
    """``train`` runs here: a cluster by another name is for ``plan``.

    ``word``: ``cluster.use``. A cluster file's path is told from the current folder, as it was most likely typed.
    """
    from paceline.ledger.outcome import Exit, Refused

    if cluster.visible:
        return
    path = Path(word)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        word = str(path.relative_to(Path.cwd()))
    raise Refused(
        "train runs on this machine",
        exit_code=Exit.CLUSTER,
        key="cluster.use",
        seen=word,
        rule="only `plan` looks at machines that are not here; launching elsewhere is not in this version (08)",
        use=f"--cluster this, or paceline plan JOB --cluster {quote(word)}",
    )


def code_hash() -> str:
    """SHA-256 over the package's own source, names and contents, in sorted order."""
    root = Path(paceline.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return "sha256:" + digest.hexdigest()

"""Where a proof works: a run folder with its lock and heartbeat, the job's data, and the ranks that cases run in."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.ground import code_hash, decide_precision
from paceline.api.kept import save_job
from paceline.api.plan import measured_here, resolve_cluster
from paceline.api.runs import runs_root
from paceline.api.subject import Subject, subject_of
from paceline.api.surroundings import cache_folder, environment
from paceline.api.trials import Trials
from paceline.launch.machine import Machine, probe
from paceline.ledger import manifest as manifests
from paceline.ledger.folder import NAME_BYTES, RunFolder, check_run_name, create
from paceline.ledger.lock import Lock
from paceline.ledger.outcome import PacelineError
from paceline.ledger.status import Heartbeat, Status
from paceline.plan.layout import Layout

if TYPE_CHECKING:
    from paceline.compute.data.prepared import Prepared
    from paceline.job import Job, Loaded

Say = Callable[[str, str], None]


@dataclass
class Bench:
    """A run folder in which cases are run, with the data prepared."""

    folder: RunFolder
    machine: Machine
    prepared: Prepared
    precision: str
    trials: Trials
    scratch: Path
    say: Say

    def subject(
        self,
        name: str,
        job: Job,
        layouts: tuple[Layout, ...],
        *,
        shrunk: bool,
        steps: int,
        batch: int | None = None,
    ) -> Subject:
        """The job in small for these layouts."""
        return subject_of(
            name,
            job,
            self.prepared,
            layouts,
            shrunk=shrunk,
            precision=self.precision,
            steps=steps,
            folder=self.scratch,
            batch=batch,
        )

    def guarded(self, layout: str, work: Callable[[], Any]) -> Any:
        """Runs ``work`` with a heartbeat; whatever ends it, the status says so and the tensors are deleted."""
        with Heartbeat(self.folder.path) as heart:
            heart.beat(state="running", layout=layout)
            try:
                found = work()
            except PacelineError as error:
                heart.end("failed", error.exit_code, error.message)
                raise
            except BaseException as error:
                code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
                code = 130 if isinstance(error, KeyboardInterrupt) else code
                heart.end("failed", code, f"{type(error).__name__}: {error}")
                raise
            else:
                heart.end("done" if found.proven else "failed", found.exit_code)
                return found
            finally:
                shutil.rmtree(self.scratch, ignore_errors=True)


def open_bench(loaded: Loaded, held: ExitStack, say: Say) -> Bench:
    """Prepare the data, then make the run folder, and lock it."""
    from paceline.compute.data.prepare import prepare
    from paceline.compute.data.spec import DataSpec
    from paceline.job.untrained import refuse_to_build
    from paceline.launch.forkserver import warm

    job = loaded.job
    refuse_to_build(job)
    spec = DataSpec.from_job(job, loaded.where)
    warm(["paceline.recipes.prove"])
    machine = probe(environment())
    prepared = prepare(spec, cache_folder() / "data", progress=lambda row: None, workers=machine.cores)
    cluster = resolve_cluster("this", job.run.device)
    precision = decide_precision(job, measured_here(), cluster).train.precision
    name = check_run_name(job.run.name or "run")[: NAME_BYTES - len("-prove")]
    root = runs_root(job.run.root if "run.root" in loaded.origins else None)
    folder = create(root, f"{name}-prove")
    held.enter_context(Lock(folder))
    Status(state="preparing", kind="prove").write(folder.status)
    save_job(folder, job)
    folder.copy_source(loaded.path if loaded.files else None, loaded.files[:-1])
    hashes = {"job": job.hash, "data": prepared.hash, "code": code_hash()}
    manifests.write(
        folder,
        manifests.new_manifest(
            kind="prove",
            hashes=hashes | {"weights": "random: (seed, name, index)"},
            hardware_found={"host": machine.host, "cpu": machine.cpu_model, "cores": machine.cores},
            environment=environment().shown,
            data_hosts=[machine.host],
            origins=loaded.origins,
        ),
    )
    say("run", f"new: {folder.path}")
    trials = Trials(folder.logs, job.run.device, machine.cores, job.restart.hang_timeout)
    return Bench(folder, machine, prepared, precision, trials, folder.evidence / "tensors", say)


def sayer(on_message: Callable[[Mapping[str, Any]], None] | None) -> Say:
    def say(field: str, text: str) -> None:
        if on_message is not None:
            on_message({"kind": "say", "field": field, "text": text})

    return say

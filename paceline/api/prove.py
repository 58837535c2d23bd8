"""``pl.prove``: is the distributed run the same training? Every parameter's gradient against one device."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.ground import code_hash, decide_precision
from paceline.api.isolate import isolate
from paceline.api.jobs import MANY_TOKENS, Sets, load_job, run_of
from paceline.api.kept import save_job
from paceline.api.naming import names_in_repairs
from paceline.api.plan import measured_here, resolve_cluster
from paceline.api.runs import Run, runs_root
from paceline.api.subject import Subject, refuse_large, subject_of
from paceline.api.surroundings import cache_folder, environment
from paceline.api.trials import Outcome, Trials
from paceline.evidence.cause import Difference, first_difference
from paceline.evidence.parity import Judged, Row, judge, judge_own
from paceline.launch.environment import refuse_engine_world
from paceline.launch.machine import Machine, probe, refuse_platform
from paceline.ledger import manifest as manifests
from paceline.ledger.atomic import read_json, write_json
from paceline.ledger.folder import NAME_BYTES, RunFolder, check_run_name, create
from paceline.ledger.lock import Lock
from paceline.ledger.outcome import Exit, Failed, PacelineError, Refused
from paceline.ledger.plural import many
from paceline.ledger.status import Heartbeat, Status
from paceline.plan.layout import Layout
from paceline.recipes.case import Case

if TYPE_CHECKING:
    from paceline.compute.data.prepared import Prepared
    from paceline.job import Job, Loaded

LEAST_STEPS = 3
LEGS = ("both", "fp64", "job")
SHRINKS = ("auto", "off")
STEPS_RULE = (
    "a proof takes three steps: the first tells of gradients, the second of the optimizer's state, the third of what "
    "both did"
)
SHRINK_RULE = (
    "auto makes the model smaller for the proof and keeps what the layout divides; off takes it as it is"
)
LEG_RULE = "fp64 compares in float64, job in the job's own precision, both does one after the other"
SINGLE = Layout()
Say = Callable[[str, str], None]


@dataclass(frozen=True)
class Proof:
    """What was compared, and the verdict.

    Attributes:
        proven: every leg ran, and everything is equal within its limit.
        rows: the table. first_difference: of a proof that failed, what is wrong and whose it is.
        said: what was made smaller. legs: those that ran (``fp64``, and the job's precision).
        run: the run folder with ``evidence/prove.json``.
    """

    layout: Layout
    proven: bool
    rows: tuple[Row, ...]
    first_difference: Difference | None
    said: str
    legs: tuple[str, ...]
    steps: int
    seconds: float
    run: Run
    notes: tuple[str, ...] = field(default=())

    @property
    def exit_code(self) -> int:
        return int(Exit.DONE if self.proven else Exit.UNPROVEN)

    def to_dict(self) -> dict[str, Any]:
        """As in ``evidence/prove.json``."""
        first = self.first_difference
        return {
            "layout": str(self.layout),
            "proven": self.proven,
            "rows": [row.to_dict() for row in self.rows],
            "first_difference": None if first is None else first.to_dict(),
            "shrunk": self.said,
            "legs": list(self.legs),
            "steps": self.steps,
            "seconds": round(self.seconds, 2),
            "run": self.run.name,
            "path": str(self.run.path),
            "notes": list(self.notes),
        }


def prove(
    job: Job | str | Path,
    layout: str | Layout = "auto",
    *,
    steps: int = LEAST_STEPS,
    shrink: str = "auto",
    leg: str = "both",
    set: Sets = (),
    on_message: Callable[[Mapping[str, Any]], None] | None = None,
) -> Proof:
    """Train the job's own model on its own data on one device and on the layout, and compare.

    Args:
        job: a job, a job file or a run.
        layout: to prove; ``auto`` = of a run the layout that it trained with, of a job its ``layout.use``, and
            where that is auto too, what the plan chooses.
        steps: optimizer steps, at least 3.
        shrink: ``auto`` makes the model smaller, keeping what the layout divides; ``off`` takes it as it is.
        leg: ``fp64``, ``job`` (the job's own precision) or both.
        set: job keys and values on top, as ``--set``.
        on_message: sees the headings (``say``).

    Raises:
        Refused: the job, the layout or the data is not acceptable; nothing has started.
        Failed: the ranks could not finish.
    """
    refuse_platform()
    refuse_options(steps, shrink, leg)
    say = sayer(on_message)
    began = time.monotonic()
    with names_in_repairs(job, again="paceline prove") as names, ExitStack() as held:
        refuse_engine_world(environment())
        loaded = load_job(job, set)
        word = trained_layout(job, str(layout), set, say)
        asked = asked_layout(loaded.job, word)
        bench = open_bench(loaded, held, say)
        names.run = bench.folder
        wanted = (SINGLE, asked)
        subject = bench.subject("reference", loaded.job, wanted, shrunk=shrink == "auto", steps=steps)
        refuse_large(subject, bench.machine.memory_bytes, asked.world_size)
        return bench.guarded(str(asked), lambda: _prove(bench, subject, asked, leg, began, say))


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


def _prove(bench: Bench, subject: Subject, asked: Layout, leg: str, began: float, say: Say) -> Proof:
    layout = subject.dealt(asked)
    refuse_broken(subject, layout)
    exact, own = leg in ("both", "fp64"), leg in ("both", "job")
    notes = list(subject.notes)
    if own and bench.precision == "fp64":
        notes.append("the job's own precision is float64: one leg is all there is")
        exact, own = True, False
    ready(bench, subject, exact=exact, own=own)
    say(
        "prove",
        f"one device is done; now {many(layout.world_size, 'rank')} of {asked}",
    )
    judged = run_legs(bench, subject, layout, exact=exact, own=own)
    failing = next((j for j in judged.values() if not j.equal), None)
    first = None
    if failing is not None:
        which = next(name for name, j in judged.items() if j is failing)
        say("prove", "differs; running it with less in it, to tell what the failure needs")
        needs = what_it_needs(bench, subject, layout, which)
        first = first_difference(failing, layout, needs)
    rows = tuple(row for j in judged.values() for row in j.rows)
    proof = Proof(
        asked,
        failing is None,
        rows,
        first,
        subject.small.said,
        tuple(judged),
        subject.steps,
        time.monotonic() - began,
        Run(bench.folder),
        tuple(notes),
    )
    write_evidence(bench.folder, proof.to_dict(), judged)
    return proof


def ready(bench: Bench, subject: Subject, *, exact: bool, own: bool) -> None:
    """Run one device: the references, and in the job's own precision its own error; raises what ended it."""
    for error in references(bench, [subject], exact=exact, own=own).values():
        raise error


def references(
    bench: Bench, subjects: Sequence[Subject], *, exact: bool, own: bool
) -> dict[str, PacelineError]:
    """One device for many subjects, in one launch; subject → what ended it, of those that it ended."""
    cases: dict[str, tuple[Subject, Case]] = {}
    for subject in subjects:
        wanted = [(SINGLE, "fp64", True)] if exact else []
        wanted += [(SINGLE, "still", True), (SINGLE, "job", False)] if own else []
        for layout, leg, write in wanted:
            case = subject.case(f"{subject.name} {leg}", layout, leg, write=write)
            cases[case.name] = subject, case
    ended: dict[str, PacelineError] = {}
    done = iter(range(1, len(cases) + 1))

    def heard(outcome: Outcome) -> None:
        bench.say("prove", f"one device: {next(done)} of {many(len(cases), 'training')} done")

    bench.say("prove", f"one device first: {many(len(cases), 'training')} to compare with")
    for outcome in bench.trials.run([case for _, case in cases.values()], heard):
        subject, case = cases[outcome.case.name]
        if outcome.error is not None:
            ended.setdefault(subject.name, outcome.error)
        elif not all(report["finite"] for report in reports_of(outcome)):
            ended.setdefault(subject.name, _diverges(len(reports_of(outcome)[0]["losses"])))
        elif not case.write:
            write_json(bench.scratch / f"{subject.name}-own.json", {"reports": _plain(outcome.reports)})
    return ended


def _diverges(step: int) -> Failed:
    """One device itself comes to no number: there is nothing to compare a layout with."""
    return Failed(
        f"one device diverges: loss or gradient is not finite at step {step} of the proof",
        exit_code=Exit.NONFINITE,
        key="optimizer.lr",
        seen=f"step {step} on one device",
        rule="a proof compares with what one device computes, which must be numbers",
        use="--set optimizer.lr=1e-4, or the value that train runs with",
    )


def run_legs(bench: Bench, subject: Subject, layout: Layout, *, exact: bool, own: bool) -> dict[str, Judged]:
    """The legs of one layout, judged, by name: ``fp64`` and the job's precision."""
    cases = [subject.case(leg, layout, leg) for leg, on in (("fp64", exact), ("job", own)) if on]
    found: dict[str, Judged] = {}
    for outcome in bench.trials.run(cases):
        name, judged = judged_leg(bench, subject, layout, outcome)
        found[name] = judged
    return found


def judged_leg(bench: Bench, subject: Subject, layout: Layout, outcome: Outcome) -> tuple[str, Judged]:
    """The verdict on one case that ran."""
    reports = reports_of(outcome)
    index = read_json(Path(outcome.case.against) / "reference.json")
    if outcome.case.leg == "fp64":
        return "fp64", judge(index, reports, layout)
    alone = read_json(bench.scratch / f"{subject.name}-own.json")["reports"]
    return subject.precision, judge_own(index, _numbers(alone), reports, subject.precision)


def what_it_needs(bench: Bench, subject: Subject, layout: Layout, leg: str) -> tuple[str, ...]:
    """Which parts of a failing layout its failure needs; () where a rerun does not tell."""

    def fails(less: Layout) -> bool:
        if subject.refused(less) is not None:
            return False
        case = subject.case(f"less: {less}", less, "fp64" if leg == "fp64" else "job")
        outcome = bench.trials.run([case])[0]
        return outcome.error is None and not judged_leg(bench, subject, less, outcome)[1].equal

    return isolate(layout, fails)[1]


def reports_of(outcome: Outcome) -> list[dict[str, Any]]:
    """The ranks' reports; raises what ended them instead."""
    if outcome.error is not None:
        raise outcome.error
    return outcome.reports


def write_evidence(folder: RunFolder, proof: Mapping[str, Any], judged: Mapping[str, Judged]) -> Path:
    """``evidence/prove.json``: the rows, and of each leg every tensor that differs, worst rank and its figures."""
    differing = {
        name: [
            {"name": f.name, "kind": f.kind, "error": f.error, "limit": f.limit, "rank": f.rank, **f.block}
            for f in j.differing
        ]
        for name, j in judged.items()
    }
    path = folder.evidence / "prove.json"
    write_json(path, _plain({"schema": 1, **proof, "differing": differing}))
    return path


def _plain(value: Any) -> Any:
    """JSON has no infinity: the largest double stands for it."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _numbers(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What :func:`_plain` wrote, with infinity where it says null as an error."""
    for report in reports:
        for blocks in report["kinds"].values():
            for block in blocks:
                block["error"] = math.inf if block["error"] is None else block["error"]
    return reports


def trained_layout(job: Job | str | Path, word: str, sets: Sets, say: Say) -> str:
    """Where JOB is a run and nothing else is asked for: what it trained with, which its own job may leave to auto."""
    run = run_of(job) if isinstance(job, str | Path) else None
    if word not in ("", "auto") or run is None or "layout.use" in dict(sets) or run.layout.auto:
        return word
    say("layout", f"{run.layout}: what {run.name} trained with")
    return str(run.layout)


def asked_layout(job: Job, word: str) -> Layout:
    """The layout that is meant: the word's, the job's, or the plan's; closed, and checked by the rule book.

    Raises:
        Refused: 2 or 10, with the nearest layout that runs.
    """
    from paceline.api.plan import plan
    from paceline.plan.rules import Facts, check, read

    text = job.layout.use if word in ("", "auto") else word
    where = "layout.use" if text is job.layout.use else "--layout"
    cluster = resolve_cluster("this", job.run.device)
    facts = Facts(
        widths=job.model.widths(job.model.own_vocab_size() or MANY_TOKENS),
        global_batch=job.train.global_batch_size,
        devices=cluster.devices,
        cpu=cluster.is_cpu,
        optimizer=job.optimizer.name,
        sequence_length=job.data.sequence_length,
    )
    layout = read(text, facts, where)
    if layout.auto:
        return plan(job, layout=text).layout
    check(layout, facts, where)
    return layout.resolve(cluster.devices)


def refuse_broken(subject: Subject, layout: Layout) -> None:
    """Refuse a layout that the rule book allows on the job and not on the job in small: shrinking kept too little."""
    broken = subject.refused(layout)
    if broken is None:
        return
    raise Refused(
        f"the job in small does not take this layout: {broken[1]}",
        exit_code=broken[0].exit_code,
        key="--shrink",
        seen=f"{layout}; {subject.small.said or 'nothing was made smaller'}",
        rule=broken[0].text,
        use="--shrink off",
    )


def refuse_options(steps: int, shrink: str, leg: str) -> None:
    """Refuse (2) an option that is out of range."""
    for name, seen, good, rule, allowed, use in (
        ("--steps", str(steps), steps >= LEAST_STEPS, STEPS_RULE, f"{LEAST_STEPS} or more", str(LEAST_STEPS)),
        ("--shrink", shrink, shrink in SHRINKS, SHRINK_RULE, ", ".join(SHRINKS), "auto"),
        ("--leg", leg, leg in LEGS, LEG_RULE, ", ".join(LEGS), "both"),
    ):
        if not good:
            raise Refused(
                f"{name} {seen} is not possible",
                exit_code=Exit.USAGE,
                key=name,
                seen=seen,
                rule=rule,
                allowed=allowed,
                use=f"{name} {use}",
            )


def sayer(on_message: Callable[[Mapping[str, Any]], None] | None) -> Say:
    def say(field: str, text: str) -> None:
        if on_message is not None:
            on_message({"kind": "say", "field": field, "text": text})

    return say

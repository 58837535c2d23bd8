"""``pl.plan``: which layout, on what hardware, and is it worth it at all. Starts nothing, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.api.jobs import load_job
from paceline.api.surroundings import cache_folder, environment
from paceline.ledger.outcome import Exit, Refused

if TYPE_CHECKING:
    from paceline.job import Job
    from paceline.plan.answer import Plan
    from paceline.plan.cluster import Cluster
    from paceline.plan.hardware.search import Hardware
    from paceline.plan.layout import Layout
    from paceline.plan.measured import Measured


def plan(
    job: Job | str | Path,
    *,
    cluster: str | Cluster | None = None,
    layout: str | Layout | None = None,
    top: int = 5,
    what_if: Mapping[str, Sequence[Any]] | None = None,
) -> Plan:
    """Choose a layout for a job.

    Args:
        job: a job, a job file or a run.
        cluster: a name of interface §5 or a value; default the job's ``cluster.use`` (``this``). A menu (``aws``,
            ``any``, names with commas between them) is chosen from (``api/hardware.py``).
        layout: to be priced; default the job's ``layout.use`` (``auto``: the best of all).
        top: candidates to list.
        what_if: job keys and the values to ask about; ``cluster.`` may be left out.

    Raises:
        Refused: 2, 10, 11, 12, 13 or 14, with the nearest job that is possible.
    """
    from paceline.plan.search import plan as search

    found = load_job(job).job
    menu = menu_of(found, cluster)
    if menu is not None:
        return hardware_plan(found, menu, layout=layout, top=top, what_if=what_if)[1]
    where = "--layout" if layout is not None else "layout.use"
    return search(
        found,
        cluster=resolve_cluster(cluster if cluster is not None else found.cluster.use, found.run.device),
        measured=measured_here(),
        layout=layout if layout is not None else found.layout.use,
        top=top,
        what_if=what_if or {},
        where=where,
    )


def check_save(path: str | Path, read: Iterable[Path]) -> None:
    """Whether a planned job, or a page, can be written there: a job that was read stays as its author wrote it.

    Args:
        path: of ``--save``.
        read: the job file and its bases.

    Raises:
        Refused: (2) the place takes no file, or it is one of ``read``.
    """
    from paceline.plan.answer import PAGE, refuse_place

    refuse_place(path, (".toml", PAGE))
    path = Path(path)
    if path.exists() and any(file.exists() and path.samefile(file) for file in read):
        other = path.with_name(f"{path.stem}-planned.toml")
        raise Refused(
            f"--save would write over {path}, which the plan is made from",
            exit_code=Exit.USAGE,
            key="--save",
            seen=f"--save {path}",
            rule="the planned job has every key resolved; the one that it is made from keeps its comments",
            use=f"--save {quote(str(other))}",
        )


def hardware_plan(
    job: Job,
    menu: str,
    *,
    layout: str | Layout | None = None,
    top: int = 5,
    what_if: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[Hardware, Plan]:
    """The hardware chosen from a menu, and the plan for it."""
    from paceline.api.hardware import plan_on

    def parse(name: str) -> Cluster:
        return resolve_cluster(name, job.run.device)

    return plan_on(job, menu, parse=parse, measured=measured_here(), layout=layout, top=top, what_if=what_if)


def menu_of(job: Job, cluster: str | Cluster | None) -> str | None:
    """The hardware to choose from, where a cluster's name asks for a choice."""
    from paceline.plan.hardware.menu import is_menu

    name = cluster if cluster is not None else job.cluster.use
    return name if isinstance(name, str) and is_menu(name) else None


def resolve_cluster(cluster: str | Cluster, device: str = "auto") -> Cluster:
    """A cluster by name; this machine is probed only where the name needs it."""
    if not isinstance(cluster, str):
        return cluster
    from paceline.plan.cluster import is_file, parse_cluster
    from paceline.plan.hardware.menu import is_menu

    if is_menu(cluster):
        raise Refused(
            f"{cluster} is a choice of hardware, and one cluster is needed here",
            exit_code=Exit.USAGE,
            key="cluster.use",
            seen=cluster,
            rule="only `paceline plan` chooses hardware; it says the name of what it chose",
            use="--cluster p5.48xlargex4",
        )
    needs_probe = cluster.strip() == "this" or is_file(cluster)
    return parse_cluster(cluster, this=this_cluster(device) if needs_probe else None, where="--cluster")


def this_cluster(device: str = "auto") -> Cluster:
    """``this``: the visible devices, or the CPU's cores."""
    from paceline.launch.machine import machine_cluster, probe

    return machine_cluster(probe(environment()), device)


def measured_here() -> Measured | None:
    """What this machine was measured to reach, from the cache; None when it never was."""
    from paceline.launch.machine import probe
    from paceline.plan.measured import Measured, machine_key, measurement_path

    machine = probe(environment())
    key = machine_key(machine.cpu_model, machine.cores, machine.memory_bytes)
    return Measured.read(measurement_path(cache_folder(), key), key)


def scale_by(
    job: Job, counts: Iterable[int], *, cluster: str | Cluster | None = None, layout: str | None = None
) -> list[dict[str, Any]]:
    """The best plan for each number of devices (:mod:`paceline.plan.scaling`); what cannot be says why."""
    from paceline.plan.scaling import compared, row

    base = resolve_cluster(cluster if cluster is not None else job.cluster.use, job.run.device)
    rows: list[dict[str, Any]] = []
    for count in counts:
        hosts = max(1, -(-count // base.devices)) if base.hosts > 1 or not base.is_cpu else 1
        smaller = replace(base, hosts=hosts, devices=count // hosts if count % hosts == 0 else count)
        try:
            rows.append(row(count, plan(job, cluster=smaller, layout=layout, top=1)))
        except Refused as error:
            rows.append({"devices": count, "refused": error.message, "exit_code": error.exit_code})
    return compared(rows)


def parse_counts(text: str) -> list[int]:
    """``1,2,8,64`` → [1, 2, 8, 64]."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise Refused(
            "--scale needs numbers of devices",
            exit_code=Exit.USAGE,
            key="--scale",
            seen=text,
            rule="whole numbers above 0, with commas between them",
            use="--scale 1,2,8,64",
        )
    return sorted({int(word) for word in words})


def _refuse_empty(key: str, text: str) -> NoReturn:
    """Refuse (2) to ask about nothing; the default is what the plan says without a question."""
    from paceline.job.lines import shortened

    given = ",".join(part for part in text.split(",") if part.strip())
    raise Refused(
        "--what-if asks about an empty value",
        exit_code=Exit.USAGE,
        key="--what-if",
        seen=f"--what-if {shortened(f'{key}={text}')}",
        rule="a value, or several with commas between them; the default is the plan without this question",
        use=f"--what-if {key}={shortened(given)}" if given else f"leave out --what-if {key}=",
    )


def parse_what_if(words: Iterable[str]) -> dict[str, list[Any]]:
    """``KEY=V1,V2`` words → values by key; a repeated flag adds one value, which may then hold commas.

    ``--what-if layout.use=fsdp=2,mbs=4 --what-if layout.use=dp=2`` asks about two layouts.
    """
    from paceline.job.sets import parse_set_value, split_set

    pairs = [split_set(word) for word in words]
    keys = [key for key, _ in pairs]
    asked: dict[str, list[Any]] = {}
    for key, text in pairs:
        whole = keys.count(key) > 1 or text.lstrip().startswith(("[", "{", '"'))
        parts = [text] if whole else text.split(",")
        if not all(part.strip() for part in parts):
            _refuse_empty(key, text)
        asked.setdefault(key, []).extend(parse_set_value(part) for part in parts)
    return asked

"""``cluster measure --from RUN``: what finished runs took in each part of their steps corrects the next plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.ledger.outcome import Exit, Refused
from paceline.ledger.plural import many

if TYPE_CHECKING:
    from paceline.api.runs import Run
    from paceline.ledger.lines import RankLedger
    from paceline.plan.cluster import Cluster
    from paceline.plan.measured import Measured
    from paceline.plan.speed.corrected import Correction

WARM = 2  # steps of each attempt that do not count
LEAST_STEPS = 5
KEPT_SHARE = 0.8  # of the steps, the middle ones by their length: a stall of the machine is no price


def calibrate_from(words: Sequence[str], out: str | None, say: Callable[[str, str], None]) -> dict[str, Any]:
    """Compare runs with their own prices and keep the factors, in the cache and (``out``) in a cluster file.

    Args:
        words: runs of one precision, on this kind of machine.
        out: a cluster file to write; required where the devices are CUDA ones, which have no measurement in the cache.
        say: a line for each run.

    Returns:
        ``precision``, ``factors`` and ``spread`` by part, ``runs``, ``left_out`` (by run and part, why it taught
        nothing) and ``file``.

    Raises:
        Refused: 2, what :func:`taught_by` refuses, runs of several precisions, or one of fewer than
            ``WARM + LEAST_STEPS`` steps; 13, a CPU that has not been measured, or runs of another machine.
    """
    from paceline.api.measuring import cluster_file, write_cluster
    from paceline.api.plan import measured_here, this_cluster
    from paceline.api.teaching import taught_by
    from paceline.plan.speed.corrected import joined

    file = None if out is None else cluster_file(out)
    runs = taught_by(words)  # before the machine is looked at: what was typed is the nearer reason
    cluster, measured = this_cluster(), measured_here()
    if cluster.is_cpu and measured is None:
        raise Refused(
            "this machine was not measured",
            exit_code=Exit.CLUSTER,
            seen="no measurement in the cache",
            rule="a run corrects what was measured",
            use="paceline cluster measure",
        )
    if not cluster.is_cpu and file is None:
        raise Refused(
            "a correction of CUDA devices needs a file",
            exit_code=Exit.USAGE,
            key="--out",
            seen="no --out",
            rule="the cache holds measurements of processors; a cluster file holds the devices and their correction",
            use="--out lab.toml",
        )
    found: dict[str, dict[str, float]] = {}
    without: dict[str, dict[str, str]] = {}
    precisions: set[str] = set()
    for run in runs:
        precision, factors, nothing, steps = _of_run(run, cluster, measured)
        precisions.add(precision)
        found[_id(run)], without[_id(run)] = factors, nothing
        say("run", f"{run.path}: {many(steps, 'step')} of {run.layout}, {_told(factors)}")
        for part, why in nothing.items():
            say("left out", f"{part}: {why}")
    if len(precisions) != 1:
        raise Refused(
            "the runs have several precisions",
            exit_code=Exit.USAGE,
            key="--from",
            seen=", ".join(sorted(precisions)),
            rule="a factor is of one precision",
            use="one command for each precision",
        )
    correction = joined(precisions.pop(), found)
    rows = _kept(cluster, measured, correction)
    if cluster.is_cpu:
        _into_cache(rows)
    if file is not None:
        write_cluster(file, cluster, rows)
    return correction.to_dict() | {"left_out": without, "file": str(file) if file else None}


def _id(run: Run) -> str:
    return str(run.manifest.get("run_id", "")) or run.name


def _told(factors: Mapping[str, float]) -> str:
    return " · ".join(f"{part} ×{factor:.2f}" for part, factor in factors.items())


def _of_run(
    run: Run, cluster: Cluster, measured: Measured | None
) -> tuple[str, dict[str, float], dict[str, str], int]:
    """Precision, factors by part, why other parts have none, and steps of a run.

    It is priced by this planner, not by the one of its day.
    """
    from dataclasses import replace

    from paceline.ledger import records
    from paceline.ledger.accounts import read_ranks, split_waits
    from paceline.plan.chance import PARTS
    from paceline.plan.search import plan
    from paceline.plan.speed.corrected import factors_of, left_out

    refuse_other_machine(run, cluster)
    record = records.read(run.folder, 2)
    ranks = split_waits(read_ranks(run.folder)).ranks
    measured_s, steps = parts_of_steps(ranks, pipeline=run.layout.pp > 1)
    assert record is not None  # refuse_unfit
    if steps < LEAST_STEPS:
        raise Refused(
            f"{run.name} has too few steps to correct a plan",
            exit_code=Exit.USAGE,
            key="--from",
            seen=f"{many(steps, 'step')} after {WARM} that do not count",
            rule=f"a run of {WARM + LEAST_STEPS} steps or more",
            use="a longer run",
        )
    precision, widths = str(record["decision"]["precision"]), record["inputs"]["widths"]
    plain = None if measured is None else replace(measured, corrections=())
    priced = plan(
        run.job.replace({"train.precision": precision}),
        cluster=cluster,
        measured=plain,
        layout=str(run.layout),
        vocab_size=int(widths["vocab_size"]),
    ).best.terms
    prices = {part: priced[f"{part}_s"] for part in PARTS}
    return precision, factors_of(prices, measured_s), left_out(prices, measured_s), steps


def refuse_other_machine(run: Run, cluster: Cluster) -> None:
    """Refuse (13) a run of another kind of device: its seconds say nothing about these."""
    there = run.manifest.get("hardware_found") or {}
    devices = [str(name) for name in there.get("devices") or ()]
    same = there.get("cpu") == cluster.cpu_model and not devices if cluster.is_cpu else bool(devices)
    if same and (not cluster.is_cpu or int(there.get("cores") or 0) == cluster.devices):
        return
    kind = ", ".join(devices) or f"{many(int(there.get('cores') or 0), 'core')} of {there.get('cpu')}"
    raise Refused(
        f"{run.name} ran on another machine",
        exit_code=Exit.CLUSTER,
        key="--from",
        seen=kind,
        rule="a run corrects plans for the kind of machine that it ran on",
        use="a run of this machine, or this command on that one",
    )


def parts_of_steps(ranks: Iterable[RankLedger], *, pipeline: bool) -> tuple[dict[str, float], int]:
    """Seconds of a step by the planner's parts, mean over ranks and the middle steps; and of how many steps in all.

    A peer that is late is part of the price of a message, or of a pipeline's waiting; checkpoints and evaluations
    have lines of their own, and are no part of a step.
    """
    from paceline.ledger.accounts import step_accounts

    sums: dict[str, list[float]] = defaultdict(list)
    counted = 0
    for ledger in ranks:
        steps = sorted(step_accounts(ledger).items())[WARM:]
        counted = max(counted, len(steps))
        steps.sort(key=lambda step: sum(step[1].values()))
        cut = round(len(steps) * (1 - KEPT_SHARE) / 2)
        for _, accounts in steps[cut : len(steps) - cut]:
            one: dict[str, float] = defaultdict(float)
            for account, seconds in accounts.items():
                one[part_of(account, pipeline=pipeline)] += seconds
            for part, seconds in one.items():
                sums[part].append(seconds)
    total = max((len(values) for values in sums.values()), default=1)
    return {part: sum(values) / total for part, values in sums.items()}, counted


def part_of(account: tuple[str, str], *, pipeline: bool) -> str:
    """The planner's part that an account of the ledger is priced in."""
    phase, reason = account
    if phase == "idle" and reason in ("peer", "bubble"):
        return "idle" if pipeline else "deliver"
    if phase == "update":
        return "update" if reason in ("optimizer", "norm", "clip") else "host"
    return phase if phase in ("compute", "deliver") else "host"


def _kept(cluster: Cluster, measured: Measured | None, correction: Correction) -> dict[str, Any]:
    """The measurement with this correction in the place of an older one of its precision."""
    rows = measured.to_dict() if measured is not None else {}
    older = [row for row in rows.get("corrections", ()) if row.get("precision") != correction.precision]
    return rows | {"corrections": [*older, correction.to_dict()]}


def _into_cache(rows: Mapping[str, Any]) -> None:
    from paceline.api.surroundings import cache_folder
    from paceline.ledger.atomic import write_json
    from paceline.plan.measured import measurement_path

    write_json(measurement_path(cache_folder(), str(rows["key"])), dict(rows))

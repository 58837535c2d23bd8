"""Phase 1: which layout, and whether to distribute at all (DESIGN §2). Arithmetic only.

Enumerate, price, drop what cannot be, decide device → host → cluster, and say why every alternative was
not taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.job.quantities import print_duration
from paceline.ledger.outcome import Exit, Refused
from paceline.plan import money, rules
from paceline.plan.abstain import check_limit, check_link, check_rate, inside
from paceline.plan.answer import GIB, Candidate, Plan, Rejection
from paceline.plan.census import of_list
from paceline.plan.cluster import Cluster, with_keys
from paceline.plan.crossings import batch_crossings, device_crossings
from paceline.plan.decide import (
    Judged,
    best_by_cut,
    decide,
    judge,
    memory_limit,
    nearest,
    price,
    rank_key,
    verdicts,
)
from paceline.plan.digits import three
from paceline.plan.enumerate import with_micro_batches
from paceline.plan.facts import JobFacts, job_facts
from paceline.plan.goodput import DEVICE_MTBF_S, Failures
from paceline.plan.layout import Layout
from paceline.plan.measured import Measured
from paceline.plan.reasons import bare, objective, reason, wins_when
from paceline.plan.relax import gentler, relaxations
from paceline.plan.speed.cpu import CpuSpeeds
from paceline.plan.speed.speeds import Speeds
from paceline.plan.survey import survey, tally_of
from paceline.plan.weigh import Question, fits

if TYPE_CHECKING:
    from paceline.job import Job
    from paceline.plan.what_if import Answer

MOST_LISTED = 3000
MENTIONED = 0.98  # a goodput above this needs no words
WORTH_SAYING = 0.005


def plan(
    job: Job,
    *,
    cluster: Cluster,
    measured: Measured | None,
    layout: str | Layout = "auto",
    top: int = 5,
    tokens: int | None = None,
    vocab_size: int | None = None,
    what_if: Mapping[str, Sequence[Any]] | None = None,
    where: str = "--layout",
) -> Plan:
    """Choose a layout for a job on a cluster.

    Args:
        job: the job, with every key.
        cluster: where it would run (``cluster.parse_cluster``, ``launch.machine``); the job's own ``[cluster]``
            keys are applied on top.
        measured: what ``recipes/measure.py`` measured on this machine; None = the catalogue, and said so.
        layout: ``auto``, or the layout to price; its micro-batch is chosen when it is not given.
        top: how many candidates are listed.
        tokens: of one epoch, when the data is prepared; else bytes / 4 is assumed and said.
        vocab_size: the tokenizer's, when it exists.
        what_if: job keys and values to ask about (``cluster.`` may be left out).

    Raises:
        Refused: exit 10 or 2 for a layout that the rule book refuses, 11 when nothing fits in memory, 12 when no
            layout meets the deadline or the budget; each with the nearest.
    """
    question = question_of(job, cluster, measured, tokens, vocab_size)
    check_rate(question)
    wanted = layout if isinstance(layout, Layout) else rules.read(layout, question.rule_facts, where)
    judged = judged_by(question, wanted, where)
    best, scopes = decide(question, judged.candidates)
    listed = best_by_cut(judged.candidates)
    shown = [best, *[c for c in listed if c.layout != best.layout]][: max(1, top)]
    told = verdicts(question, best, shown)
    judged.rejected.extend(_slower(question, best, judged.candidates, shown))
    crossovers = [] if not wanted.auto else _crossovers(job, question, measured, best)
    disk = _disk(job, question)

    def answer(changed: Job, cluster: Cluster, asked: Layout) -> Candidate:
        from paceline.plan.what_if import WHERE

        other = question_of(changed, cluster, measured, tokens, vocab_size)
        return decide(other, judged_by(other, asked, WHERE).candidates)[0]

    found = Plan(
        job=job,
        facts=question.facts,
        cluster=question.cluster,
        objective=question.objective,
        best=told[0],
        candidates=told,
        rejected=_fewer(judged.rejected),
        scopes=scopes,
        reason=reason(question, best, scopes, judged, wanted),
        shortcut=_shortcut(question, best),
        crossovers=crossovers,
        assumed=[
            *question.facts.assumed,
            *question.speeds.assumed,
            *money.unknown(question.cluster),
            *_failing(question, best),
        ],
        disk=disk,
        what_if=_asked(job, question, wanted, what_if, answer) if what_if else [],
        measured_at=_measured_at(question.speeds),
        busy=bool(getattr(question.speeds, "busy", False)),
        tally=judged.tally,
        census=judged.census,
        priced=judged.candidates,
        auto=wanted.auto,
        question=question,
    )
    check_link(found)
    return found


def _asked(
    job: Job, question: Question, wanted: Layout, what_if: Mapping[str, Sequence[Any]], answer: Answer
) -> list[dict[str, Any]]:
    from paceline.plan.what_if import rows

    return [
        row
        for key, values in what_if.items()
        for row in rows(job, question.cluster, wanted, key, values, answer)
    ]


def judged_by(question: Question, wanted: Layout, where: str) -> Judged:
    """At least one candidate, or the refusal that says why there is none."""
    rules.check(wanted, question.rule_facts, where)
    closed = wanted.resolve(question.cluster.world)
    if closed.auto:
        judged = survey(question, closed)
    else:
        judged = judge(question, with_micro_batches(closed, question.facts.work))
        judged.tally, judged.census = tally_of(judged), of_list(judged.by_kind())
    if not judged.candidates:
        _nothing(question, judged, closed, where)
    return judged


def question_of(
    job: Job, cluster: Cluster, measured: Measured | None, tokens: int | None, vocab_size: int | None
) -> Question:
    """What is asked of the search: the job's own ``[cluster]`` keys over the cluster, and what is known of both."""
    cluster = with_keys(cluster, job.cluster, "[cluster]")
    if cluster.measured is not None:
        measured = Measured.from_dict(cluster.measured) or measured
    facts = job_facts(
        job, cluster, measured if cluster.visible or cluster.measured else None, tokens, vocab_size
    )
    return Question(
        facts=facts,
        cluster=cluster,
        speeds=speeds_of(cluster, measured, facts.work.precision),
        objective=job.layout.objective,
        deadline_s=job.layout.deadline,
        budget_usd=job.layout.budget_usd,
        optimizer=job.optimizer.name,
        residency=job.data.residency or "",
        failures=_failures(job, cluster, facts),
    )


def _failures(job: Job, cluster: Cluster, facts: JobFacts) -> Failures:
    """What saving and failing cost; a CPU host's failures are not counted, unless the job says how often it fails."""
    every, whole = job.checkpoint.every, facts.steps
    seconds = float(every.value) if every.kind == "seconds" else None
    steps: float | None = None
    if every.kind == "steps":
        steps = float(every.value)
    elif every.kind == "epochs" and facts.tokens:
        steps = max(1.0, every.value * facts.tokens / facts.tokens_per_step)
    elif every.kind == "fraction" and whole:
        steps = max(1.0, every.value * whole)
    elif every.kind == "never":  # saved once, at the end
        steps = None if whole is None else float(whole)
    known = cluster.device_mtbf_s
    return Failures(
        device_mtbf_s=known if known is not None else None if cluster.is_cpu else DEVICE_MTBF_S,
        per_host=cluster.devices,
        checkpoint_bytes=facts.work.count.total * facts.work.master_bytes * (1 + facts.work.optimizer_states),
        every_s=seconds,
        every_steps=steps,
    )


def speeds_of(cluster: Cluster, measured: Measured | None, precision: str) -> Speeds:
    """How fast the ranks of a cluster are; a measurement counts only for the machine that it was taken on."""
    plain: Speeds
    if cluster.is_cpu:
        plain = CpuSpeeds(cluster, measured if cluster.visible or cluster.measured else None, precision)
        told = plain.measured.corrections if plain.measured is not None else ()
    else:
        from paceline.plan.speed.gpu import GpuSpeeds

        plain, told = GpuSpeeds(cluster, precision), (cluster.measured or {}).get("corrections", ())
    if not told:
        return plain
    from paceline.plan.speed.corrected import CorrectedSpeeds, read

    correction = read(told, precision)
    return plain if correction is None else CorrectedSpeeds(plain, correction)


def _failing(question: Question, best: Candidate) -> list[str]:
    """What the goodput rests on, where it is worth a line; and the interval between saves that loses least."""
    failures, world = question.failures, best.layout.world_size
    if failures is None or best.goodput > MENTIONED:
        return []
    told = f"goodput {_percent(best.goodput)}: {failures.assumed(world)}"
    interval = failures.best_interval_s(world)
    if interval is None:
        return [told]
    better = 1 / replace(failures, every_s=interval, every_steps=None).overhead(world, best.step_s[1])
    if better - best.goodput < WORTH_SAYING:
        return [told]
    every = print_duration(_round(interval))
    return [f'{told}; checkpoint.every = "{every}" would give {_percent(better)}']


def _round(seconds: float) -> float:
    """As a person would set it: whole minutes, and below two of them tens of seconds."""
    return max(10.0, 10.0 * round(seconds / 10)) if seconds < 120 else 60.0 * round(seconds / 60)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _measured_at(speeds: Speeds) -> str:
    """When the figures that the prices rest on were taken; empty where they are the catalogue's."""
    taken = getattr(speeds, "measured", None)
    return taken.at if taken is not None else ""


def _slower(
    question: Question, best: Candidate, candidates: Sequence[Candidate], shown: Sequence[Candidate]
) -> list[Rejection]:
    listed = {c.layout for c in shown}
    unit = {"memory": "GiB", "cost": "device-s a step"}.get(question.objective, "s a step")
    found = []
    for candidate in candidates:
        if candidate.layout in listed:
            continue
        kind = "cost" if question.objective == "cost" else "slower"
        value, limit = objective(question, candidate), objective(question, best)
        found.append(Rejection(candidate.layout, kind, value, limit, unit, wins_when(candidate, best)))  # type: ignore[arg-type]
    return found


def _fewer(rejected: list[Rejection]) -> list[Rejection]:
    """All of them, or of very many the nearest to its limit of each cut and kind."""
    if len(rejected) <= MOST_LISTED:
        return rejected
    kept: dict[tuple[Layout, str], Rejection] = {}
    for one in rejected:
        key = (one.layout.replace(mbs=None, recompute="none"), one.kind)
        other = kept.get(key)
        if other is None or one.value < other.value:
            kept[key] = one
    return list(kept.values())


def _shortcut(question: Question, best: Candidate) -> str:
    """What merely adding devices would have done: plain dp over all of them."""
    work, world = question.facts.work, min(question.cluster.world, question.facts.work.global_batch)
    if world == 1:
        return "no device to add"
    options = [price(question, cut) for cut in with_micro_batches(Layout(dp=world), work)]
    fitting = [c for c in options if fits(c.memory_gib[2] * GIB, memory_limit(question, c.layout))]
    if not fitting:
        least = min(options, key=lambda c: c.memory_gib[2])
        limit = memory_limit(question, least.layout) / GIB
        return f"dp={world} does not fit: {three(least.memory_gib[2])} GiB of {three(limit)}"
    least = min(fitting, key=lambda c: rank_key(question, c))
    return f"dp={world}: {three(least.step_s[1])} s a step against {three(best.step_s[1])} for {bare(best)}"


def _crossovers(job: Job, question: Question, measured: Measured | None, best: Candidate) -> list[str]:
    return [*batch_crossings(question, best), *device_crossings(question, best, measured, speeds_of)]


def _disk(job: Job, question: Question) -> dict[str, int]:
    """Checkpoint bytes and what is free where this machine writes them; refused (11) when it cannot fit."""
    work = question.facts.work
    one = work.count.total * work.master_bytes * (1 + work.optimizer_states)
    kept = int(job.checkpoint.keep) + 1
    found = {"checkpoint": one, "kept": kept, "checkpoints": one * kept}
    if question.cluster.visible:
        import shutil

        folder = Path(job.run.root).absolute()
        while not folder.exists():
            folder = folder.parent
        found["free"] = shutil.disk_usage(folder).free
        if found["free"] < one * 2:
            raise Refused(
                "the checkpoints do not fit on this disk",
                exit_code=Exit.MEMORY,
                key="checkpoint.keep",
                seen=f"{three(one / 1e9)} GB a checkpoint, {three(found['free'] / 1e9)} GB free in {folder}",
                rule="a new checkpoint is written before an old one is removed",
                use="run.root on a larger disk",
            )
    return found


def _nothing(question: Question, judged: Judged, wanted: Layout, where: str) -> NoReturn:
    """No layout is left: say which limit binds, by how much, and what comes nearest."""
    if not judged.rejected:  # no micro-batch gives the schedule a number that it takes: the rule book says so
        rules.check(wanted.replace(mbs=1), question.rule_facts, where)
    limits = [r for r in judged.rejected if r.kind in ("deadline", "cost")]
    if limits:
        _too_late(question, min(limits, key=lambda r: r.value / r.limit))
    large = [r for r in judged.rejected if r.kind == "memory"]
    least = min(large or judged.rejected, key=lambda r: r.value)
    near = None if wanted.auto else gentler(question, least.layout)
    if near is None:
        known = judged if wanted.auto else survey(question, Layout(auto=True))
        close = nearest(least.layout, known.candidates)
        near = close.layout if close else None
    seen = (
        f"{least.layout}: {three(least.value)} GiB of {three(least.limit)} (the least of {len(large)} tried)"
    )
    raise Refused(
        "no layout fits in memory" if wanted.auto else f"{wanted} does not fit in memory",
        exit_code=Exit.MEMORY,
        key="layout.use",
        seen=seen,
        rule="weights, gradients, optimizer state and activations of a rank fit its device with room left",
        allowed=relaxations(question, least.layout),
        use=f"--layout {near}" if near else "more devices (cluster.use), or a smaller model",
        where="" if wanted.auto else where,
    )


def _too_late(question: Question, least: Rejection) -> NoReturn:
    check_limit(question, least)
    late = least.kind == "deadline"
    more = three(least.value * 1.05).replace(" ", "")  # as it is typed
    percent = f"{100 * inside(question, least):.0f} %"
    raise Refused(
        "no layout meets the deadline" if late else "no layout meets the budget",
        exit_code=Exit.DEADLINE,
        key="layout.deadline" if late else "layout.budget_usd",
        seen=f"{least.layout}: up to {three(least.value)} {least.unit} (90 %) of {three(least.limit)} {least.unit}; "
        f"{percent} likely to be inside it",
        rule="the upper end of the interval lies inside the limit",
        use=f'layout.deadline = "{more}h"' if late else f"layout.budget_usd = {more}",
    )

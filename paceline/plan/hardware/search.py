"""The planner's search over a menu: each offer by the narrow search, the chosen one in full afterwards.

The narrow search (``survey(narrow=True)``) is the planner's own for questions beside the question: the main axes, a
tenth of a second. Hosts that a layout does not use need not be rented, so an offer of N hosts is one that uses N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.ledger.outcome import Exit, Refused
from paceline.plan import money, rules
from paceline.plan.answer import Candidate, Plan
from paceline.plan.cluster import Cluster
from paceline.plan.decide import decide, judge, over_limits
from paceline.plan.digits import three
from paceline.plan.enumerate import with_micro_batches
from paceline.plan.hardware.bounds import bill, least, tokens_of
from paceline.plan.hardware.choose import Choice, Entry, Tried, Word
from paceline.plan.hardware.crossing import crossings
from paceline.plan.hardware.menu import Offer
from paceline.plan.hardware.nothing import refuse
from paceline.plan.layout import Layout
from paceline.plan.measured import Measured
from paceline.plan.search import question_of
from paceline.plan.survey import survey
from paceline.plan.weigh import Question

if TYPE_CHECKING:
    from paceline.job import Job

KEPT = 8
OWN_KEYS = ("hosts", "devices", "accelerator", "memory", "usd_per_device_hour")


@dataclass(frozen=True)
class Hardware:
    """What was chosen from, and why.

    Attributes:
        rows: every offer and number of hosts, in order of the objective. searched: how many were.
        tokens: that hours and cost are of; known: whether that is the run, or a million.
        notes: from when one's own cluster pays, and what was assumed.
    """

    menu: str
    objective: str
    chosen: Tried
    cluster: Cluster
    rows: Sequence[Tried]
    searched: int
    tokens: float
    known: bool
    notes: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        return {
            "menu": self.menu,
            "objective": self.objective,
            "chosen": self.chosen.name,
            "of": "the run" if self.known else "a million tokens",
            "searched": self.searched,
            "rows": [_row(one) for one in self.rows],
            "notes": list(self.notes),
        }

    def settled(self, plan: Plan, measured: Measured | None) -> Hardware:
        """With the full search's answer for what was chosen; it may need fewer hosts."""
        question = question_of(plan.job, plan.cluster, measured, None, None)
        chosen = replace(self.chosen, name=plan.cluster.name, hosts=plan.cluster.hosts)
        chosen = _priced(chosen, question, plan.best)
        others = [row for row in self.rows if row.name not in (chosen.name, self.chosen.name)]
        return replace(self, chosen=chosen, cluster=plan.cluster, rows=[chosen, *others])


def choose_hardware(
    job: Job,
    offers: Sequence[Offer],
    *,
    measured: Measured | None,
    layout: Layout,
    menu: str = "",
    prune: bool = True,
) -> Hardware:
    """The best offer and number of hosts for a job, by its objective, deadline and budget.

    Args:
        layout: ``auto``, or what is asked for. prune: False searches every offer (to compare with).

    Raises:
        Refused: 2, the job has keys of one cluster, its objective is memory, or no offer has a price; 11, 12 when
            nothing fits or meets the limits; what the rule book says of ``layout`` when nothing else is left.
    """
    _refuse_keys(job)
    _refuse_memory(job)
    clusters = {cluster.name: cluster for offer in offers for cluster in offer.clusters}
    questions = {name: question_of(job, cluster, measured, None, None) for name, cluster in clusters.items()}
    entries = [
        _entry(offer, cluster, questions[cluster.name]) for offer in offers for cluster in offer.clusters
    ]
    choice = Choice(entries, lambda entry: _search(entry, questions[entry.tried.name], layout))
    if not prune:
        for entry in entries:
            choice.of(entry)
    first = next(iter(questions.values()))
    chosen = choice.best(job.layout.objective, budgeted=first.budget_usd is not None)
    if chosen is None:
        refuse(choice, menu)
    notes = crossings(choice, questions)
    rows = choice.told(chosen, job.layout.objective)
    return Hardware(
        menu=menu,
        objective=job.layout.objective,
        chosen=rows[0],
        cluster=clusters[chosen.name],
        rows=rows,
        searched=choice.searched,
        tokens=tokens_of(first),
        known=first.facts.steps is not None,
        notes=[*notes, *_assumed(rows, questions)],
    )


def _refuse_keys(job: Job) -> None:
    keys = [key for key in OWN_KEYS if getattr(job.cluster, key) is not None]
    link, latency = job.cluster.link, job.cluster.latency
    keys += [f"link.{key}" for key in ("intra", "inter") if getattr(link, key) is not None]
    keys += ["latency.inter"] if latency.inter is not None else []
    if keys:
        raise Refused(
            "the job describes one cluster, and a choice was asked for",
            exit_code=Exit.USAGE,
            key=f"cluster.{keys[0]}",
            seen=", ".join(f"cluster.{key}" for key in keys),
            rule="these keys would lie over every offer; each offer has its own",
            use="put them in a cluster file, and name that in the list: --cluster lab.toml,aws",
        )


def _refuse_memory(job: Job) -> None:
    if job.layout.objective == "memory":
        raise Refused(
            "hardware is chosen by time or by cost",
            exit_code=Exit.USAGE,
            key="layout.objective",
            seen="memory",
            rule="a rank's memory is least on the most hosts; it compares layouts of one cluster",
            allowed="time, cost",
            use="--objective cost",
        )


def _entry(offer: Offer, cluster: Cluster, question: Question) -> Entry:
    bound = least(question)
    tried = Tried(cluster.name, offer.name, cluster.hosts, hours=bound.hours, usd=bound.usd)
    deadline_h = None if question.deadline_s is None else question.deadline_s / 3600
    known = question.facts.steps is not None
    if not bound.holds:
        tried = replace(tried, word="no fit", more="weights and optimizer alone are larger")
    elif known and deadline_h is not None and bound.hours > deadline_h:
        tried = replace(tried, word="late", more=f"at least {three(bound.hours)} of {three(deadline_h)} h")
    elif (
        known
        and question.budget_usd is not None
        and bound.usd is not None
        and bound.usd > question.budget_usd
    ):
        tried = replace(
            tried, word="over budget", more=f"at least ${three(bound.usd)} of {three(question.budget_usd)}"
        )
    elif bound.usd is None:
        tried = replace(tried, word="no price")
    return Entry(tried, bound.hours, bound.usd)


def _search(entry: Entry, question: Question, layout: Layout) -> Tried:
    """Without limits first: where nearly every layout breaks one, the search has little to prune by."""
    rented = question.cluster.own is None
    if rented and question.objective == "cost":  # paid whole: the fastest is the cheapest
        question = replace(question, objective="time")
    try:
        found = _best(replace(question, deadline_s=None, budget_usd=None), layout)
        if not isinstance(found, Candidate):
            return replace(entry.tried, word=found)
        broken = over_limits(question, found)
        if broken is None:
            return _priced(entry.tried, question, found)
        if (
            not rented or question.objective == "memory"
        ):  # a faster layout, or a dearer one, may keep the limits
            other = _best(question, layout)
            if isinstance(other, Candidate):
                return _priced(entry.tried, question, other)
    except Refused as refused:
        return replace(entry.tried, word="refused", more=refused.message)
    word: Word = "late" if broken.kind == "deadline" else "over budget"
    more = f"up to {three(broken.value)} of {three(broken.limit)} {broken.unit}"
    return replace(_priced(entry.tried, question, found), word=word, more=more, needs=broken.value)


def _best(question: Question, layout: Layout) -> Candidate | Word:
    """The planner's choice among layouts that use every host, or why there is none."""
    rules.check(layout, question.rule_facts, "--layout")
    closed = layout.resolve(question.cluster.world)
    if closed.auto:
        judged = survey(question, closed, narrow=True, keep=KEPT)
    else:
        judged = judge(question, with_micro_batches(closed, question.facts.work), explain=False)
    if not judged.candidates:
        return "no fit"
    whole = judged.candidates
    if question.cluster.own is None:
        whole = [c for c in whole if hosts_used(question.cluster, c) == question.cluster.hosts]
    return decide(question, whole)[0] if whole else "fewer do"


def hosts_used(cluster: Cluster, candidate: Candidate) -> int:
    """Hosts that a layout needs, filled one after another."""
    return -(-candidate.layout.world_size // cluster.devices)


def _priced(tried: Tried, question: Question, best: Candidate) -> Tried:
    hours = (
        best.hours[1]
        if best.hours is not None
        else tokens_of(question) / (best.tokens_per_s * best.goodput) / 3600
    )
    parts = bill(question, hours, best.layout.world_size)
    return replace(
        tried,
        hours=hours,
        usd=sum(parts.values()) if parts else None,
        usd_parts=tuple(parts.items()),
        layout=str(best.layout),
    )


def _assumed(rows: Sequence[Tried], questions: dict[str, Question]) -> list[str]:
    """What the choice rests on, once each; what is said of one offer only where it was chosen (its own plan)."""
    said = ["rented machines are paid whole, idle devices too; hosts 1, 2, 4, … of each"]
    if any(questions[row.name].cluster.own is not None for row in rows):
        for row in rows:
            said += [note for note in money.unknown(questions[row.name].cluster) if note.startswith("own.")]
    return list(dict.fromkeys(said))


def _row(one: Tried) -> dict[str, Any]:
    return {
        "name": one.name,
        "offer": one.offer,
        "hosts": one.hosts,
        "layout": one.layout or None,
        "hours": one.hours or None,
        "usd": one.usd,
        "usd_parts": dict(one.usd_parts),
        "verdict": one.word,
        "note": one.more,
        "bound": not one.layout,
    }

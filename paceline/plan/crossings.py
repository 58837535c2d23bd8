"""What would change the answer: the same question at other batches and other numbers of devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from paceline.plan.answer import Candidate
from paceline.plan.cluster import Cluster
from paceline.plan.decide import decide
from paceline.plan.digits import money, three
from paceline.plan.layout import Layout
from paceline.plan.measured import Measured
from paceline.plan.speed.speeds import Speeds
from paceline.plan.survey import remembering, survey
from paceline.plan.weigh import Question

DOUBLINGS = 3


def batch_crossings(question: Question, best: Candidate) -> list[str]:
    """The nearest global batch, in halvings and doublings, at which another layout is chosen."""
    found = []
    question = replace(question, speeds=remembering(question))
    chosen = best.layout.cut
    batch = question.facts.work.global_batch
    for up in (False, True):
        sizes = [batch << k if up else batch >> k for k in range(1, DOUBLINGS + 1)]
        sizes = [size for size in sizes if size >= 1]
        # The farthest first: where even it changes nothing, which is most often so, the nearer are not priced.
        if not sizes or _other_layout(question, sizes[-1], chosen) is None:
            continue
        for size in sizes:
            other = _other_layout(question, size, chosen)
            if other is not None:
                found.append(f"global_batch_size {'≥' if up else '≤'} {size} → {other}")
                break
    return found


def _other_layout(question: Question, size: int, chosen: Layout) -> Layout | None:
    """What is chosen at this global batch, where it is not ``chosen``."""
    other = _best(_with_batch(question, size))
    bare = None if other is None else other.layout.cut
    return None if bare == chosen else bare


def device_crossings(
    question: Question,
    best: Candidate,
    measured: Measured | None,
    speeds_of: Callable[[Cluster, Measured | None, str], Speeds],
) -> list[str]:
    """The answer on half the devices of a host and on twice the hosts; a CPU's cores cannot be changed."""
    if question.cluster.is_cpu:
        return []
    found = []
    chosen = best.layout.cut
    cluster = question.cluster
    others = [(f"devices={cluster.devices // 2}", replace(cluster, devices=cluster.devices // 2))]
    others.append((f"hosts={cluster.hosts * 2}", replace(cluster, hosts=cluster.hosts * 2)))
    for name, other in others:
        if other.devices < 1:
            continue
        speeds = speeds_of(other, measured, question.facts.work.precision)
        answer = _best(replace(question, cluster=other, speeds=speeds))
        if answer is not None and answer.layout.cut != chosen:
            time = (
                f", {three(answer.hours[1])} h" if answer.hours else f", {three(answer.step_s[1])} s a step"
            )
            price = f", {money(answer.usd)}" if answer.usd is not None else ""
            found.append(f"{name} → {answer.layout.cut}{time}{price}")
    return found


def _with_batch(question: Question, size: int) -> Question:
    facts = question.facts
    return replace(question, facts=replace(facts, work=replace(facts.work, global_batch=size)))


def _best(question: Question) -> Candidate | None:
    judged = survey(question, Layout(auto=True), narrow=True, keep=8)
    return decide(question, judged.candidates)[0] if judged.candidates else None

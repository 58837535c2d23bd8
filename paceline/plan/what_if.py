"""The same job with another value of one key: what would be chosen, how long, how much memory and money.

A larger batch is another training run, not a faster one: the row says which learning rate is customary for it, and
that no arithmetic knows where a larger batch stops paying.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from paceline.ledger.outcome import Refused
from paceline.plan.answer import Candidate
from paceline.plan.cluster import Cluster, parse_cluster
from paceline.plan.layout import Layout

if TYPE_CHECKING:
    from paceline.job import Job

SHORT = {"cluster": "cluster.use", "use": "cluster.use"}
BATCH = "train.global_batch_size"
WHERE = "--what-if"

Answer = Callable[["Job", Cluster, Layout], Candidate]
"""Chosen for a job on a cluster with a layout asked for; raises Refused."""


def key_named(word: str, job: Job) -> str:
    """The job key that a word names: ``cluster.`` may be left out (``devices``, ``link.inter``)."""
    known = word.partition(".")[0] in type(job).model_fields and "." in word
    return SHORT.get(word, word if known else f"cluster.{word}")


def rows(
    job: Job, cluster: Cluster, wanted: Layout, word: str, values: Sequence[Any], answer: Answer
) -> list[dict[str, Any]]:
    """One for each value: key, value, and the answer's layout, ``step_s``, ``memory_gib``, ``hours``, ``usd`` (and
    ``learning_rate``, ``says`` of another batch); or ``refused`` with its exit code."""
    key = key_named(word, job)
    return [_row(job, cluster, wanted, key, value, answer) for value in values]


def _row(job: Job, cluster: Cluster, wanted: Layout, key: str, value: Any, answer: Answer) -> dict[str, Any]:
    row: dict[str, Any] = {"key": key, "value": value}
    try:
        changed = job
        if key == "cluster.use":
            this = cluster if cluster.visible else None
            cluster = parse_cluster(str(value), this=this, where=WHERE)
        elif key == "layout.use":
            wanted = Layout.parse(str(value), WHERE)
        else:
            changed = job.replace({key: value})
        best = answer(changed, cluster, wanted)
    except Refused as refused:
        return row | {"refused": refused.message, "exit_code": refused.exit_code}
    row |= {"layout": str(best.layout), "step_s": best.step_s[1], "memory_gib": best.memory_gib[2]}
    row |= {"hours": best.hours and best.hours[1], "usd": best.usd}
    return row | (_of_batch(job, changed) if key == BATCH else {})


def _of_batch(job: Job, changed: Job) -> dict[str, Any]:
    """The customary learning rate: times the root of the batch for AdamW, times the batch for SGD."""
    times = changed.train.global_batch_size / job.train.global_batch_size
    adaptive = job.optimizer.name == "adamw"
    rule = "lr × √batch (AdamW)" if adaptive else "lr × batch (SGD)"
    return {
        "learning_rate": job.optimizer.lr * (times**0.5 if adaptive else times),
        "says": f"assumed {rule}; where a larger batch stops paying is a measurement, not a plan",
    }

"""``restart.elastic``: the layout of the ranks that are left."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.job import Job
    from paceline.plan.layout import Layout
    from paceline.plan.model import Widths


def left_over(layout: Layout, lost: int, job: Job, widths: Widths) -> Layout | None:
    """The layout nearest to this one without ``lost`` of its ranks; None where no rule allows one.

    Replicas are given up first: the others hold all that they held. Then shards. The axes that cut a layer or the
    depth stay, since another cut is another plan.
    """
    from paceline.plan.rules import Facts, first_broken

    facts = Facts(
        widths=widths,
        global_batch=job.train.global_batch_size,
        optimizer=job.optimizer.name,
        sequence_length=job.data.sequence_length,
    )
    left = layout.world_size - lost
    for axis in ("dp", "fsdp"):
        degree = layout.degree(axis)
        others = layout.world_size // degree
        for fewer in range(min(degree - 1, left // others), 0, -1):
            found = layout.replace(**{axis: fewer})
            if first_broken(found, facts) is None:
                return found
    return None

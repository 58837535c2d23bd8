"""The decision record: all that a plan knows of its choice, as one JSON object, for ``--json`` and the page.

``Plan.to_dict`` is what was worked out anyway. This adds what costs something and is asked for: the families, the
tied set, which assumption changes the choice, what everything rests on, and the points of the page's picture.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

from paceline.plan.answer import Candidate, Plan, Rejection
from paceline.plan.cluster import CATALOG
from paceline.plan.cost.step import estimate, memory_of
from paceline.plan.digits import GIB
from paceline.plan.families import families
from paceline.plan.measured import hash_of
from paceline.plan.sensitivity import sensitivity
from paceline.plan.speed.gpu import GpuSpeeds
from paceline.plan.speed.rates import AS_PUBLISHED, Rates
from paceline.plan.ties import TIED, tied
from paceline.plan.weigh import SURE_TO_FIT, Question

MOST_TIED = 200
MOST_POINTS = 3000


def decision(plan: Plan, *, points: bool = False) -> dict[str, Any]:
    """``Plan.to_dict`` with the rest of the record; ``points``: those of the picture too."""
    close = tied(plan)
    found = plan.to_dict() | {
        "families": [one.to_dict() for one in families(plan)],
        "tied": close[:MOST_TIED],
        "tied_count": len(close),
        "sensitivity": [row.to_dict() for row in sensitivity(plan)],
        "inputs": inputs(plan),
    }
    return found | {"picture": picture(plan)} if points else found


def inputs(plan: Plan) -> dict[str, Any]:
    """Versions, seeds and hashes of what the figures rest on."""
    import paceline

    question, cluster, sheet = plan.question, plan.cluster, plan.cluster.accelerator
    found: dict[str, Any] = {
        "versions": {"paceline": paceline.__version__, "python": platform.python_version()},
        "job_hash": plan.job.hash,
        "seeds": {"train.seed": plan.job.train.seed, "planner": "draws no random numbers"},
        "catalogue": {
            "hash": catalogue_hash(),
            "accelerator": sheet.name,
            "source": sheet.source,
            "price_date": cluster.price_date,
        },
        "measurement": None,
        "calibration": None,
    }
    speeds = question.speeds if question is not None else None
    measured = getattr(speeds, "measured", None)
    if measured is not None:
        found["measurement"] = {
            "hash": hash_of(measured.to_dict()),
            "at": measured.at,
            "torch": measured.torch,
            "cpu_share": measured.cpu_share,
        }
    if isinstance(speeds, GpuSpeeds):
        found["calibration"] = _calibration(speeds.rates)
    return found


def _calibration(rates: Rates) -> dict[str, Any]:
    """Which multipliers lie over the closed forms."""
    values = dict(zip(type(rates).__dataclass_fields__, rates.values(), strict=True))
    return {"rates": "as published" if rates == AS_PUBLISHED else "calibrated", "hash": hash_of(values)}


@cache
def catalogue_hash() -> str:
    """Of all packaged data sheets."""
    return hash_of({path.name: path.read_text(encoding="utf-8") for path in sorted(CATALOG.glob("*.toml"))})


def picture(plan: Plan) -> dict[str, Any]:
    """Step time and memory of every layout that is known one by one.

    ``points``: (layout, low, mid, high seconds, GiB, state); a state is chosen, tied, slower, memory or late. Memory
    is a device's fullest rank; on a CPU, where ranks share the host's, that of all of them.
    """
    question = plan.question
    if question is None:
        return {}
    close = {one["layout"] for one in tied(plan)}
    found = []
    for c in plan.priced:
        state = "chosen" if c.layout == plan.best.layout else "tied" if str(c.layout) in close else "slower"
        found.append(_point(question, c, state))
    drawn = {c.layout for c in plan.priced}
    for one in plan.rejected[: MOST_POINTS - len(found)]:
        if one.kind != "rule" and one.layout not in drawn:
            found.append(_rejected_point(question, one))
    shared = plan.cluster.is_cpu
    return {
        "points": found,
        "limit_gib": plan.cluster.memory_bytes / GIB,
        "fits_gib": plan.cluster.memory_bytes / GIB * SURE_TO_FIT,
        "of": "all ranks of the host" if shared else "the fullest rank",
        "tied_from": TIED,
    }


def _ranks(question: Question, world: int) -> int:
    return question.cluster.ranks_on_host(world) if question.cluster.is_cpu else 1


def _point(question: Question, c: Candidate, state: str) -> list[Any]:
    gib = c.memory_gib[2] * _ranks(question, c.layout.world_size)
    return [str(c.layout), *(float(f"{v:.5g}") for v in (*c.step_s, gib)), state]


def _rejected_point(question: Question, one: Rejection) -> list[Any]:
    """Its middle alone: what does not run needs no interval."""
    work, speeds, cluster = question.facts.work, question.speeds, question.cluster
    memory = memory_of(one.layout, work, speeds, cluster)
    step_s = float(f"{estimate(one.layout, work, speeds, cluster, memory).step_s:.5g}")
    gib = float(f"{memory[3] / GIB * _ranks(question, one.layout.world_size):.5g}")
    state = {"memory": "memory", "deadline": "late"}.get(one.kind, "slower")
    if one.kind == "cost" and one.unit == "$":
        state = "late"
    return [str(one.layout), step_s, step_s, step_s, gib, state]

"""Whether an order can run: everything is done once, in a possible order, and nobody waits for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from paceline.plan.pipeline.counts import Pipeline
from paceline.plan.pipeline.orders import Action, Order


def problems(found: Sequence[Order], layout: Pipeline, micro_batches: int) -> list[str]:
    """Everything that is wrong with the orders of the ranks; empty when they can run.

    Each stage sits on its rank and does each micro-batch once, forward before backward, inputs before weights;
    and nobody waits for ever when receives block (sends do not).
    """
    wrong = [
        f"rank {rank}: {action} belongs to rank {layout.stage_rank(action.stage)}"
        for rank, order in enumerate(found)
        for action in order
        if layout.stage_rank(action.stage) != rank
    ]
    for rank, order in enumerate(found):
        wrong += _counted(rank, order)
    work = {(a.stage, a.kind, a.micro_batch) for order in found for a in order}
    for stage in range(layout.stages):
        for m in range(micro_batches):
            backward = {kind for kind in "BIW" if (stage, kind, m) in work}
            if (stage, "F", m) not in work or backward not in ({"B"}, {"I", "W"}):
                has = "".join(kind for kind in "FBIW" if (stage, kind, m) in work) or "nothing"
                wrong.append(f"stage {stage}, micro-batch {m}: has {has}, needs F and B, or F, I and W")
    return wrong or _stuck(found, layout)


def _counted(rank: int, order: Order) -> list[str]:
    wrong = []
    seen: Counter[tuple[int, str, int]] = Counter()
    for action in order:
        stage, kind, m = key = (action.stage, action.kind, action.micro_batch)
        before = {"B": "F", "I": "F", "W": "I"}.get(kind)
        if seen[key]:
            wrong.append(f"rank {rank}: {action} twice")
        if before and not seen[stage, before, m]:
            wrong.append(f"rank {rank}: {action} before {stage}{before}{m}")
        seen[key] += 1
    return wrong


def needs(action: Action, stages: int) -> tuple[int, str] | None:
    """The stage whose work on the same micro-batch must come first, and its way: ``F``, or ``B`` for either
    kind of backward that hands on a gradient. None: nothing from another stage."""
    if action.kind == "F":
        return (action.stage - 1, "F") if action.stage > 0 else None
    if action.kind in ("B", "I"):
        return (action.stage + 1, "B") if action.stage < stages - 1 else None
    return None


def gives(action: Action) -> str:
    """What the action hands on: ``F`` an output, ``B`` a gradient, or nothing."""
    return {"F": "F", "B": "B", "I": "B"}.get(action.kind, "")


def _stuck(found: Sequence[Order], layout: Pipeline) -> list[str]:
    """Runs the orders with receives that block; what nobody can go on from."""
    done: set[tuple[int, str, int]] = set()
    at = [0] * len(found)
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(found):
            while at[rank] < len(order) and _ready(order[at[rank]], layout.stages, done):
                action = order[at[rank]]
                done.add((action.stage, gives(action), action.micro_batch))
                at[rank] += 1
                moved = True
    return [
        f"rank {rank} waits for ever at {order[place]}"
        for rank, (order, place) in enumerate(zip(found, at, strict=True))
        if place < len(order)
    ]


def _ready(action: Action, stages: int, done: set[tuple[int, str, int]]) -> bool:
    need = needs(action, stages)
    return need is None or (*need, action.micro_batch) in done

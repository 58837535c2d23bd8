"""One rank: compute of the part of the model that it holds. Every layout starts from here."""

from __future__ import annotations

from paceline.plan.columns import Column
from paceline.plan.cost.held import Held
from paceline.plan.cost.sheaf import Priced
from paceline.plan.cost.terms import Work, micro_batches
from paceline.plan.model import cut
from paceline.plan.speed.speeds import Speeds

STEP_S = 2e-3  # the loop itself: schedule, metrics, hooks
MICRO_BATCH_S = 0.5e-3  # fetching and placing a micro-batch
RECOMPUTED = {"none": 1.0, "selective": 1.05, "full": 4 / 3}
"""Compute of a layer over that without: ``full`` is one more forward; ``selective`` what lies between products."""


def compute_s(layout: Priced, work: Work, speeds: Speeds, held: Held, rows: Column) -> Column:
    """Forward and backward of one micro-batch of ``rows`` through what is held, padding included."""
    world, length, mbs = layout.world_size, work.sequence_length, rows / layout.cp
    layers = sum(
        part.count * speeds.block_s(part.kind, length, mbs, world, layout.tp) for part in held.layers
    )
    outer = speeds.outer_s(cut(work.widths, layout.tp), length, mbs, world) if held.predicts else 0.0
    return recomputed(layout, speeds) * layers + outer


def recomputed(layout: Priced, speeds: Speeds) -> float:
    """Compute of the layers over that of the same without recompute."""
    return 1 + speeds.factors.recompute * (RECOMPUTED[layout.recompute] - 1)


def host_s(layout: Priced, work: Work) -> Column:
    """What Python does between micro-batches and steps."""
    return STEP_S + MICRO_BATCH_S * micro_batches(layout, work.global_batch)[1]

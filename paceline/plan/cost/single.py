"""One device: compute, optimizer and memory. Every layout starts from here."""

from __future__ import annotations

from paceline.plan.cost.terms import Work, micro_batches
from paceline.plan.layout import Layout
from paceline.plan.model import cast_weight_bytes, peak_activation_bytes
from paceline.plan.speed.speeds import Speeds

STEP_S = 2e-3  # the loop itself: schedule, metrics, hooks
MICRO_BATCH_S = 0.5e-3  # fetching and placing a micro-batch


def compute_s(layout: Layout, work: Work, speeds: Speeds) -> float:
    """Forward and backward of a rank's micro-batches, padding included."""
    world = layout.world_size
    layers = work.widths.num_hidden_layers
    rows, micros = micro_batches(layout, work.global_batch)
    block = speeds.block_s(work.widths, work.sequence_length, rows, world)
    return micros * (layers * block + speeds.outer_s(work.widths, work.sequence_length, rows, world))


def host_s(layout: Layout, work: Work) -> float:
    """What Python does between micro-batches and steps."""
    return STEP_S + MICRO_BATCH_S * micro_batches(layout, work.global_batch)[1]


def memory(layout: Layout, work: Work, shards: int = 1) -> dict[str, float]:
    """Bytes of one rank by purpose, its states cut in ``shards``."""
    local = work.count.total / shards
    largest = micro_batches(layout, work.global_batch)[0]
    return {
        "weights": work.master_bytes * local,
        "gradients": work.master_bytes * local,
        "optimizer": work.master_bytes * work.optimizer_states * local,
        "activations": peak_activation_bytes(work.widths, work.precision, largest * work.sequence_length),
        "cast weights": float(cast_weight_bytes(work.widths, work.precision)) if shards == 1 else 0.0,
    }

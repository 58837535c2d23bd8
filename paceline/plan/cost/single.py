"""One rank: compute, optimizer and memory of the part of the model that it holds. Every layout starts from here."""

from __future__ import annotations

from paceline.plan.activations import (
    block_bytes,
    head_gradient_bytes,
    layer_activation_bytes,
    loss_bytes,
    mask_bytes,
    outer_activation_bytes,
)
from paceline.plan.columns import Column, most
from paceline.plan.cost.held import Held, rank_states
from paceline.plan.cost.pp import in_flight
from paceline.plan.cost.sheaf import Priced
from paceline.plan.cost.terms import Work, micro_batches
from paceline.plan.model import Widths, cut, norm_parameters
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


def memory(layout: Priced, work: Work, held: Held, place: int = 0) -> dict[str, Column]:
    """Bytes of one rank by purpose. ``place`` is its coordinate of the pipeline."""
    local = rank_states(layout, held)
    return {
        "weights": work.master_bytes * local,
        "gradients": work.master_bytes * local,
        "optimizer": work.master_bytes * work.optimizer_states * local,
        "activations": activations(layout, work, held, place),
        "cast weights": _cast_weights(layout, work, held, place),
    }


def activations(layout: Priced, work: Work, held: Held, place: int = 0) -> Column:
    """The largest sum that lives at once: what is kept of the micro-batches in flight, and the work at its peak.

    That is reached where backward begins: in the loss with its chunk of logits, or then in a layer with its
    gradients; with recompute that layer's activations are all there again.
    """
    rows, micros = micro_batches(layout, work.global_batch)
    tokens = rows * work.sequence_length / layout.cp
    flying = in_flight(layout, place, micros)
    kept = flying * _kept(layout, work, held, tokens)
    outer: Column = 0.0
    loss: Column = 0.0
    if held.predicts:
        outer = _outer(layout, work, tokens)
        loss = outer + loss_bytes(work.widths, work.precision, tokens, layout.tp)
    kept += (flying - 1) * outer
    received: Column = 0.0
    # Of a pipeline: the stream that comes next and the gradient that leaves; what is in flight is a kept input.
    if layout.pp > 1:
        received = 2 * layout.vpp * tokens / layout.tp * work.widths.hidden_size * work.weight_bytes
    return kept + most(loss, at_work(layout, work, held)) + received


def at_work(layout: Priced, work: Work, held: Held) -> Column:
    """Bytes of the layer that is in its backward, beside what was kept for it."""
    tokens = micro_batches(layout, work.global_batch)[0] * work.sequence_length / layout.cp
    found: Column = 0.0
    for part in held.layers:
        each = tokens * block_bytes(part.kind, work.precision, layout.tp)
        if layout.recompute != "none":
            each += tokens * _layer(layout, work, part.kind, "none")
        found = most(found, each)
    return found


def _layer(layout: Priced, work: Work, kind: Widths, recompute: str) -> float:
    return layer_activation_bytes(kind, work.precision, work.sequence_length, layout.tp, recompute)


def _kept(layout: Priced, work: Work, held: Held, tokens: Column) -> Column:
    """Of the layers, for one micro-batch between its forward and its backward."""
    kept: Column = 0.0
    for part in held.layers:
        kept += part.count * tokens * _layer(layout, work, part.kind, layout.recompute)
        if layout.recompute != "full":
            kept += part.count * mask_bytes(part.kind, work.precision, work.sequence_length, layout.cp)
    return kept


def _outer(layout: Priced, work: Work, tokens: Column) -> Column:
    """Outside the layers: what the head keeps of a micro-batch, and its weight's gradient."""
    kept = tokens * outer_activation_bytes(work.widths, work.precision, layout.tp)
    return kept + head_gradient_bytes(work.widths, work.precision, layout.tp)


def _cast_weights(layout: Priced, work: Work, held: Held, place: int) -> Column:
    """bfloat16 copies that backward needs, where fsdp does not hold the weights in that type already: each micro-batch
    in flight has its own."""
    if work.precision != "bf16" or layout.sharded:
        return 0.0
    each = [part.parameters.total * (1 if layout.recompute == "full" else part.count) for part in held.layers]
    layers = max(each, default=0) if layout.recompute == "full" else sum(each)
    found = 2.0 * (layers + (norm_parameters(work.widths) if held.predicts else 0))
    if layout.pp == 1 or layout.recompute == "full":
        return found
    return found * in_flight(layout, place, micro_batches(layout, work.global_batch)[1])

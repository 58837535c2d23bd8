"""The moments at which a rank may hold most, and what it holds then. Its memory is the fullest of them.

head    the last micro-batch's loss: all activations in flight, a chunk of logits, the gradient of the head
turn    the loss's backward: its kept gradient of the head, times that of the loss, once more in the compute type
layer   the layers' backward begins: the last layer at work, its predecessor gathered ahead
behind  fsdp scatters that layer's gradients while the one before it is at work
root    backward ends: gradients of the tables are scattered
update  states and gradients alone
first   backward ends, where no earlier micro-batch has left gradients: all of them, and the first layer at work

Between ``layer`` and ``first`` activations go and gradients come by the layer, so the ends hold most.
``benchmarks/plan_memory.py`` holds this to the dry run of the real code.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan.activations import (
    head_gradient_bytes,
    head_product_bytes,
    loss_bytes,
    outer_activation_bytes,
    split_bytes,
    working_bytes,
)
from paceline.plan.columns import Column, choose, most, some
from paceline.plan.cost import dp, fsdp, pp
from paceline.plan.cost.held import Held, rank_states
from paceline.plan.cost.kept import cast_weights, layer_bytes, layers_bytes
from paceline.plan.cost.sheaf import Priced
from paceline.plan.cost.terms import Work, micro_batches

Parts = dict[str, Column]


@dataclass(eq=False)
class Rank:
    """What every moment of a coordinate asks for, asked once.

    Attributes:
        flying: micro-batches in flight. fresh: none of the step has ended its backward when most are in flight.
        kept: of the layers, a micro-batch. one: of the layer that keeps most. working: of the layer at work.
        outer: of a micro-batch, outside the layers. always: states and what dp keeps.
        gradients: of the step so far. earlier: the same, where an earlier micro-batch has left them.
        scatters: whether a layer's gradients are scattered behind its backward.
    """

    layout: Priced
    work: Work
    held: Held
    place: int
    tokens: Column
    flying: Column
    fresh: Column
    kept: Column
    one: Column
    working: Column
    outer: Column
    always: Parts
    gradients: Parts
    earlier: Parts
    scatters: bool

    def head_gradient(self) -> Column:
        """Of the head's weight, while the layers are at work: fsdp scatters the tables' last."""
        if not self.held.predicts:
            return 0.0
        table = head_gradient_bytes(self.work.widths, self.work.precision, self.layout.tp)
        if self.layout.sharded:
            return self.scatters * table * self.work.weight_bytes / self.work.master_bytes
        return choose(self.fresh, table, 0.0)


def rank_of(layout: Priced, work: Work, held: Held, place: int) -> Rank:
    """``place``: the coordinate of the pipeline."""
    rows, micros = micro_batches(layout, work.global_batch)
    tokens = rows * work.sequence_length / layout.cp
    flying = pp.in_flight(layout, place, micros)
    each = [layer_bytes(layout, work, part.kind, tokens) for part in held.layers]
    outer: Column = 0.0
    if held.predicts:
        outer = tokens * outer_activation_bytes(work.widths, work.precision, layout.tp)
        outer += head_gradient_bytes(work.widths, work.precision, layout.tp)
    local = rank_states(layout, held)
    always: Parts = {
        "weights": work.master_bytes * local,
        "optimizer": work.master_bytes * work.optimizer_states * local,
    }
    scatters = layout.sharded and layout.zero != "zero1"
    fresh = micros <= flying
    if layout.sharded and not scatters:  # zero1 sums whole ones
        gradients: Parts = {"whole gradients": 1.0 * work.gradient_bytes * held.total}
    else:
        gradients = {"gradients": work.master_bytes * local}
    return Rank(
        layout=layout,
        work=work,
        held=held,
        place=place,
        tokens=tokens,
        flying=flying,
        fresh=fresh,
        kept=layers_bytes(layout, work, held, tokens),
        one=most(0.0, *each),
        working=_working(layout, work, held, place, tokens),
        outer=outer,
        always=always | dp.memory(layout, work, held),
        gradients=gradients,
        earlier={name: choose(fresh, 0.0, size) for name, size in gradients.items()},
        scatters=scatters,
    )


def _working(layout: Priced, work: Work, held: Held, place: int, tokens: Column) -> Column:
    length, recompute = work.sequence_length, layout.recompute
    found: Column = 0.0
    for part in held.layers:
        each = working_bytes(part.kind, work.precision, length, layout.tp, recompute, layout.etp)
        found = most(found, tokens * each)
    if not pp.splits(layout):
        return found
    # The half of backward that makes the weights' gradients comes later, and what it reads stays.
    owed = sum(
        part.count * split_bytes(part.kind, work.precision, layout.tp, layout.etp) for part in held.layers
    )
    micros = micro_batches(layout, work.global_batch)[1]
    return found + tokens * owed * pp.owing(layout, place, micros)


def moments(rank: Rank) -> dict[str, Parts]:
    """Bytes by purpose at each moment that there is."""
    found = {"update": rank.always | rank.gradients}
    if rank.held.predicts:
        found |= {"head": _head(rank), "turn": _turn(rank)}
    if rank.held.layers:
        found["layer"] = _layer(rank)
        if some(rank.fresh):
            found["first"] = _first(rank)
        if rank.scatters:
            found["behind"] = _behind(rank)
    if rank.scatters and rank.held.outer:
        found["root"] = _root(rank)
    return found


def _streams(rank: Rank) -> Column:
    """Of a pipeline: the outputs of what is in flight, and one gradient that has come."""
    layout = rank.layout
    if layout.pp == 1:
        return 0.0
    one = rank.tokens / layout.tp * rank.work.widths.hidden_size * rank.work.weight_bytes
    return one * (rank.flying * (layout.vpp - rank.held.predicts) + 1)


def _head(rank: Rank) -> Parts:
    work, layout = rank.work, rank.layout
    scored = loss_bytes(work.widths, work.precision, rank.tokens, layout.tp)
    return _outside(rank, scored) | {
        "cast weights": cast_weights(layout, work, rank.held, rank.flying, head=True)
    }


def _turn(rank: Rank) -> Parts:
    widths, precision, tp = rank.work.widths, rank.work.precision, rank.layout.tp
    return _outside(
        rank, head_gradient_bytes(widths, precision, tp) + head_product_bytes(widths, precision, tp)
    )


def _outside(rank: Rank, loss: Column) -> Parts:
    """While no layer is at work."""
    work, layout, held = rank.work, rank.layout, rank.held
    hidden = rank.tokens * work.widths.hidden_size * work.weight_bytes
    return {
        **rank.always,
        **rank.earlier,
        "activations": rank.flying * (rank.kept + rank.outer) + _streams(rank) + hidden + loss,
        "cast weights": cast_weights(layout, work, held, rank.flying, outside=True),
        **fsdp.gathered(layout, work, held, layers=1),
    }


def _layer(rank: Rank) -> Parts:
    work, layout, held = rank.work, rank.layout, rank.held
    activations = rank.flying * rank.kept + (rank.flying - 1) * rank.outer + _streams(rank)
    return {
        **rank.always,
        **rank.earlier,
        "activations": activations + rank.working,
        "cast weights": cast_weights(layout, work, held, rank.flying),
        "scatter buffers": rank.head_gradient(),
        **fsdp.gathered(layout, work, held, layers=min(2, held.depth)),
    }


def _behind(rank: Rank) -> Parts:
    work, layout, held = rank.work, rank.layout, rank.held
    layer = fsdp.largest(layout, held)
    copied = work.gradient_bytes * layer
    beside = work.weight_bytes * layer if held.depth == 1 else most(rank.working, work.weight_bytes * layer)
    kept = rank.flying * rank.kept - rank.one + (rank.flying - 1) * rank.outer + _streams(rank)
    return {
        **rank.always,
        **rank.earlier,
        "activations": kept,
        "scatter buffers": rank.head_gradient() + copied + beside,
        **fsdp.gathered(layout, work, held, layers=min(2, max(1, held.depth - 1))),
    }


def _root(rank: Rank) -> Parts:
    work, layout, held = rank.work, rank.layout, rank.held
    return {
        **rank.always,
        **rank.gradients,
        "activations": (rank.flying - 1) * (rank.kept + rank.outer) + _streams(rank),
        "scatter buffers": 1.0 * (work.weight_bytes + work.gradient_bytes) * held.outer,
        **fsdp.gathered(layout, work, held, layers=0),
    }


def _first(rank: Rank) -> Parts:
    work, layout, held = rank.work, rank.layout, rank.held
    others = (rank.flying - 1) * (rank.kept + rank.outer) + _streams(rank)
    behind = work.gradient_bytes * fsdp.largest(layout, held) if rank.scatters and held.depth > 1 else 0.0
    return {
        **rank.always,
        **rank.gradients,
        "activations": others + rank.one + rank.working,
        "cast weights": cast_weights(layout, work, held, rank.flying, first=True),
        "scatter buffers": behind + rank.scatters * rank.head_gradient(),
        **fsdp.gathered(layout, work, held, layers=1),
    }

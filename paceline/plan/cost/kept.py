"""What a rank keeps of one micro-batch between its forward and its backward: activations, and casts of weights."""

from __future__ import annotations

from paceline.plan.activations import layer_activation_bytes, mask_bytes
from paceline.plan.columns import Column
from paceline.plan.cost import cp
from paceline.plan.cost.held import Held, expert_shards
from paceline.plan.cost.sheaf import Priced
from paceline.plan.cost.terms import Work
from paceline.plan.model import Widths, norm_parameters


def layers_bytes(layout: Priced, work: Work, held: Held, tokens: Column) -> Column:
    """Of all layers."""
    found: Column = 0.0
    for part in held.layers:
        found += part.count * layer_bytes(layout, work, part.kind, tokens)
    return found


def layer_bytes(layout: Priced, work: Work, kind: Widths, tokens: Column) -> Column:
    """Of a layer of a kind."""
    length, precision, recompute = work.sequence_length, work.precision, layout.recompute
    found = tokens * layer_activation_bytes(kind, precision, length, layout.tp, recompute, layout.etp)
    if recompute == "full":
        return found
    found += mask_bytes(kind, precision, length, layout.cp)
    return found + cp.kept_bytes(layout, work, kind, tokens)


def cast_weights(
    layout: Priced,
    work: Work,
    held: Held,
    flying: Column,
    *,
    outside: bool = False,
    head: bool = False,
    first: bool = False,
) -> Column:
    """bfloat16 copies that backward needs, where fsdp does not hold the weights in that type already: each micro-batch
    in flight has its own.

    Args:
        outside: no layer is at work. head: nor that, and the loss has the head's.
        first: of the last micro-batch only the first layer's are left.
    """
    if work.precision != "bf16":
        return 0.0
    if layout.sharded:
        return _cast_experts(layout, held, flying)
    each = [part.parameters.total for part in held.layers]
    one = max(each, default=0)
    layers = sum(size * part.count for size, part in zip(each, held.layers, strict=True))
    norm = norm_parameters(work.widths) if held.predicts else 0
    table = -(-work.widths.vocab_size // layout.tp) * work.widths.hidden_size if head else 0
    if layout.recompute == "full":
        return 2.0 * ((0 if head or outside else one) + norm + table)
    if first:
        return 2.0 * ((flying - 1) * (layers + norm) + one)
    return 2.0 * (flying * (layers + norm) + table)


def _cast_experts(layout: Priced, held: Held, flying: Column) -> Column:
    """Experts that one rank alone holds are nothing for fsdp to gather and cast."""
    alone = 1.0 * (expert_shards(layout) == 1)
    if layout.recompute == "full":
        return alone * 2 * held.apart * max((part.parameters.experts for part in held.layers), default=0)
    return alone * 2 * flying * held.experts

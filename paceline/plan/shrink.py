"""A model made small for a proof: less depth and width, with every divisibility that a layout cuts by as it was.

A proof needs the job's own architecture, not its size: what goes wrong between ranks goes wrong at any width. What
must not change is what a cut meets: a size that a degree divides is still divided by it, one that it does not divide
still is not, key/value heads are repeated over as many ranks, stages have layers, and every kind of layer is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.job.presets import ModelWidths
from paceline.plan.cost.terms import micro_batches
from paceline.plan.layout import Layout
from paceline.plan.pipeline.counts import takes

LAYERS, HIDDEN, INNER, HEAD, LENGTH, VOCABULARY, EXPERT, RANK = 4, 64, 96, 16, 64, 509, 32, 16
"""What each size is brought down towards: layers, hidden, feed-forward, head, sequence, vocabulary, one expert, and
the ranks and head parts of latent attention."""

MICRO_BATCHES = 3


@dataclass(frozen=True)
class Small:
    """A job in small. ``said``: what is smaller, for the headline; empty = nothing."""

    widths: ModelWidths
    sequence_length: int
    global_batch: int
    said: str = ""


def smaller(
    size: int, least: int, degrees: Iterable[int], also: Callable[[int], bool] = lambda _: True
) -> int:
    """The smallest number from ``least`` to ``size`` that each degree divides, or does not, as it does ``size``.

    A degree up to ``size`` stays up to the result. ``also``: what else must hold of it.
    """
    wanted = [d for d in set(degrees) if d > 1]
    for found in range(max(1, least), size):
        alike = all((found % d == 0) == (size % d == 0) and (found >= d or size < d) for d in wanted)
        if alike and also(found):
            return found
    return size


def shrink(widths: ModelWidths, layouts: Sequence[Layout], sequence_length: int, global_batch: int) -> Small:
    """The job in small for these layouts.

    Args:
        widths: with the tokenizer's vocabulary. layouts: all that the one model is to run on.
        global_batch: sequences a step.
    """
    model = shrink_widths(widths, layouts, sequence_length)
    length = shrink_length(sequence_length, layouts)
    batch = shrink_batch(global_batch, layouts)
    return Small(model, length, batch, said(widths, model, sequence_length, length, global_batch, batch))


def shrink_widths(widths: ModelWidths, layouts: Sequence[Layout], sequence_length: int) -> ModelWidths:
    """Less depth and width; see the module."""
    w, dims = widths, _width_degrees(layouts)
    heads, key_values = _heads(w, layouts)
    changes: dict[str, Any] = {
        "num_attention_heads": heads,
        "num_key_value_heads": key_values,
        "head_dim": min(w.head_dim, HEAD),
        "hidden_size": smaller(w.hidden_size, HIDDEN, dims),
        "intermediate_size": smaller(w.intermediate_size, INNER, dims),
        "vocab_size": smaller(w.vocab_size, VOCABULARY, dims),
        "num_hidden_layers": smaller(w.num_hidden_layers, LAYERS, [x.stages for x in layouts]),
    }
    if w.num_experts:
        top = min(w.num_experts_per_tok, 2)
        spread = [d for x in layouts for d in (x.ep, x.ep * x.etp)]
        changes |= {
            "num_experts": smaller(w.num_experts, max(4, 2 * top), spread),
            "num_experts_per_tok": top,
            "moe_intermediate_size": smaller(w.moe_intermediate_size, EXPERT, dims),
            "first_k_dense_replace": min(w.first_k_dense_replace, 1),
        }
    for name in ("q_lora_rank", "kv_lora_rank"):
        if getattr(w, name):
            changes[name] = min(getattr(w, name), RANK)
    for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"):
        changes[name] = min(getattr(w, name), RANK // 2)
    length = shrink_length(sequence_length, layouts)
    if w.sliding_window is not None:
        changes["sliding_window"] = max(
            2, min(w.sliding_window, w.sliding_window * length // sequence_length)
        )
    if w.position_embedding_type == "absolute":
        changes["max_position_embeddings"] = min(w.max_position_embeddings, length)
    if w.layer_types is not None:
        changes["layer_types"] = thinned(w.layer_types, changes["num_hidden_layers"])
    return replace(w, **changes)


def shrink_length(length: int, layouts: Sequence[Layout]) -> int:
    """Tokens a row: tp and cp cut them, cp in twice as many parts as it has ranks."""
    return smaller(length, LENGTH, [d for x in layouts for d in (x.tp, 2 * x.cp, 2 * x.cp * x.tp)])


def shrink_batch(batch: int, layouts: Sequence[Layout]) -> int:
    """Sequences a step: a few micro-batches on every rank, as ragged at the end as they were."""
    least = max(
        x.data_degree * (x.mbs or 1) * max(MICRO_BATCHES, 2 * x.stages if x.pp > 1 else 0) for x in layouts
    )
    degrees = [d for x in layouts for d in (x.data_degree, x.data_degree * (x.mbs or 1), x.pp)]
    taken = [x for x in layouts if runs(x, batch)]
    return smaller(batch, least, degrees, lambda found: all(runs(x, found) for x in taken))


def runs(layout: Layout, batch: int) -> bool:
    """Whether the layout's schedule takes the micro-batches that a batch comes to; without ``mbs``, with any."""
    if layout.pp == 1:
        return True
    sizes = range(1, layout.data_rows(batch) + 1) if layout.mbs is None else (layout.mbs,)
    return any(takes(layout, micro_batches(layout.replace(mbs=mbs), batch)[1]) for mbs in sizes)


def thinned(kinds: Sequence[str], count: int) -> tuple[str, ...]:
    """``count`` of the layers' kinds, evenly spread, with every kind that there is room for."""
    picked = [kinds[i * len(kinds) // count] for i in range(count)]
    for kind in dict.fromkeys(kinds):
        if kind not in picked:
            double = next((i for i in range(count - 1, -1, -1) if picked.count(picked[i]) > 1), None)
            if double is not None:
                picked[double] = kind
    return tuple(picked)


def _heads(w: ModelWidths, layouts: Sequence[Layout]) -> tuple[int, int]:
    """Query and key/value heads in the same ratio, repeated over as many ranks, cut or not as they were."""
    group = w.num_attention_heads // w.num_key_value_heads
    degrees = {d for x in layouts for d in (x.tp, x.cp, x.tp * x.cp)}
    for key_values in range(min(2, w.num_key_value_heads), w.num_key_value_heads):
        heads = key_values * group
        alike = all(
            (heads % d == 0) == (w.num_attention_heads % d == 0)
            and math.gcd(key_values, d) == math.gcd(w.num_key_value_heads, d)
            and heads >= min(d, w.num_attention_heads)
            for d in degrees
        )
        if alike:
            return heads, key_values
    return w.num_attention_heads, w.num_key_value_heads


def _width_degrees(layouts: Sequence[Layout]) -> set[int]:
    """What a width may be divided by: shards, cuts, and the product of both."""
    return {d for x in layouts for d in (x.tp, x.fsdp, x.tp * x.fsdp, x.fsdp * x.cp, x.tp * x.fsdp * x.cp, 8)}


_SHOWN: Mapping[str, str] = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "intermediate_size": "feed-forward",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv",
    "head_dim": "head width",
    "vocab_size": "vocabulary",
    "num_experts": "experts",
    "num_experts_per_tok": "of them a token",
    "moe_intermediate_size": "expert width",
    "first_k_dense_replace": "dense layers first",
    "sliding_window": "window",
    "max_position_embeddings": "positions",
    "q_lora_rank": "query rank",
    "kv_lora_rank": "key/value rank",
    "qk_rope_head_dim": "rotated head part",
    "qk_nope_head_dim": "other head part",
    "v_head_dim": "value head",
}


def said(whole: ModelWidths, small: ModelWidths, length: int, short: int, batch: int, rows: int) -> str:
    """``4 layers, hidden 64 (heads 8, kv 2; …)``: every size that changed."""
    changed = [
        f"{word} {getattr(small, name)} of {getattr(whole, name)}"
        for name, word in _SHOWN.items()
        if getattr(whole, name) != getattr(small, name)
    ]
    if whole.vocab_size != small.vocab_size:
        changed = [f"{c}, ids folded" if c.startswith("vocabulary") else c for c in changed]
    changed += [
        f"{word} {new} of {old}"
        for word, old, new in (("sequence", length, short), ("batch", batch, rows))
        if old != new
    ]
    return ", ".join(changed)

"""Which degrees an axis can have on a model, and the nearest of them: the arithmetic behind the rule book."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from paceline.plan.cost.terms import micro_batches
from paceline.plan.layout import Layout
from paceline.plan.model import Widths
from paceline.plan.pipeline.counts import takes

MOST_LISTED = 12


def divisors(n: int) -> list[int]:
    """Of ``n``, in order."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def at_most(degrees: Iterable[int], limit: int) -> int:
    """The largest degree that is not above ``limit``; 1 where none is."""
    return max((d for d in degrees if d <= limit), default=1)


def listed(axis: str, degrees: Iterable[int]) -> str:
    """``tp = 1, 2, 4``."""
    found = list(degrees)
    more = ", …" if len(found) > MOST_LISTED else ""
    return f"{axis} = " + ", ".join(map(str, found[:MOST_LISTED])) + more


def tp_degrees(widths: Widths) -> list[int]:
    """Whole query heads on each rank, and key/value heads that go with them: whole, or one repeated."""
    narrowest = widths.intermediate_size
    if widths.num_experts and widths.n_shared_experts:
        narrowest = min(narrowest, widths.n_shared_experts * widths.moe_intermediate_size)
    return [
        tp
        for tp in divisors(widths.num_attention_heads)
        if (widths.num_key_value_heads % tp == 0 or tp % widths.num_key_value_heads == 0) and tp <= narrowest
    ]


def expert_ranks(layout: Layout) -> int:
    """The ranks of one pipeline stage, which share out its experts."""
    return layout.dp * layout.fsdp * layout.cp * layout.tp


def ep_degrees(widths: Widths, layout: Layout) -> list[int]:
    """Degrees that divide the experts, and with etp the ranks of a stage."""
    ranks = expert_ranks(layout)
    return [ep for ep in divisors(widths.num_experts or 1) if ranks % (ep * layout.etp) == 0]


def ulysses_degrees(widths: Widths, layout: Layout) -> list[int]:
    """Degrees that divide the query heads of a tp rank."""
    return divisors(max(1, widths.num_attention_heads // layout.tp))


def token_unit(layout: Layout) -> int:
    """What a row's length is a multiple of: two chunks for each cp rank, and a part of each for every tp rank."""
    return (2 * layout.cp if layout.cp > 1 else 1) * layout.tp


def nearest_cut_of_tokens(layout: Layout, length: int) -> Layout:
    """The largest part of cp and tp whose unit divides ``length``; tp gives way last."""
    cuts = [layout.replace(cp=cp, tp=tp) for cp, tp in product(divisors(layout.cp), divisors(layout.tp))]
    fits = [cut for cut in cuts if length % token_unit(cut) == 0]
    return max(fits, key=lambda cut: (cut.cp * cut.tp, cut.tp))


def nearest_micro_batch(layout: Layout, global_batch: int) -> Layout:
    """The micro-batch nearest to the wanted one whose number the schedule takes; else gpipe, which takes any."""
    wanted = layout.mbs or 1
    for mbs in sorted(range(1, layout.data_rows(global_batch) + 1), key=lambda n: (abs(n - wanted), n)):
        if takes(layout, micro_batches(layout.replace(mbs=mbs), global_batch)[1]):
            return layout.replace(mbs=mbs)
    return layout.replace(schedule="gpipe")


Shrink = Callable[[Layout], bool]


def shrunk(layout: Layout, fits: Shrink, axes: tuple[str, ...] = ("fsdp", "dp", "pp", "cp", "tp")) -> Layout:
    """The layout with degrees taken down to divisors of their own, the first axes first, until it ``fits``."""
    for axis in axes:
        for degree in reversed(divisors(layout.degree(axis))):
            smaller = layout.replace(**{axis: degree})
            if fits(smaller):
                return smaller
        layout = layout.replace(**{axis: 1})
    return layout

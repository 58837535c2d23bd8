"""Which degrees an axis can have on a model, and the nearest of them: the arithmetic behind the rule book."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.plan.layout import Layout
from paceline.plan.model import Widths

MOST_LISTED = 12


def divisors(n: int) -> list[int]:
    """Of ``n``, in order."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


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

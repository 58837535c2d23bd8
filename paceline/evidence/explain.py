"""What is wrong with one tensor, told from the figures of every rank that holds a block of it.

The figures are those of ``recipes/against.compared``. Each function that tells looks for one pattern and is silent
where it is not there; the first that speaks is right, so the order is from the narrowest pattern to the widest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.evidence.parity import Found, Report
from paceline.plan.layout import RANK_AXES, Layout

ALIKE = 1e-6
"""What two figures of a sum or a factor may differ by, relative."""

SHOWN = 4
"""Ranks that disagree are told one by one up to so many."""

REPEATED = re.compile(r"\.[kv]_proj\.")
"""Tensors that tp repeats where it has more ranks than there are key/value heads."""

Block = Mapping[str, Any]
Held = Sequence[tuple[int, Block]]


def explain(
    found: Found, reports: Sequence[Report], layout: Layout, needs: Sequence[str] = ()
) -> tuple[str, str]:
    """(what is wrong with this tensor, the axis that the figures name or empty)."""
    if found.block.get("missing"):
        return ("no rank holds it" if not found.block["held"] else "a part of it is on no rank"), ""
    if found.block.get("unknown"):
        return "one device has no such tensor", ""
    if found.block.get("bad"):
        whose = ranks_text({found.rank}, layout)
        return f"{found.block['bad']} of {found.block['of']} values are not finite on {whose}", ""
    held = [
        (rank, block)
        for rank, report in enumerate(reports)
        for block in report["kinds"].get(found.kind, ())
        if block["name"] == found.name
    ]
    for tell in (_constant_factor, _partial_sums, _confined, _disagreement):
        text, axis = tell(held, found, layout, needs)
        if text:
            return text, axis
    return _place(found), ""


def _is_gradient(found: Found) -> bool:
    """Only gradients are sums over ranks; a weight or a moment is what an update made of one."""
    return found.kind.startswith("gradient")


def _constant_factor(held: Held, found: Found, layout: Layout, needs: Sequence[str]) -> tuple[str, str]:
    """Every wrong block is the right one times the same number."""
    factors = [block["factor"] for _, block in held if block["error"] > found.limit]
    everywhere = len(factors) == len(held)
    if not factors or any(
        block["rest"] > 1e-3 * block["error"] for _, block in held if block["error"] > found.limit
    ):
        return "", ""
    factor = factors[0]
    if any(abs(f - factor) > ALIKE * max(1.0, abs(factor)) for f in factors):
        return "", ""
    where = "everywhere" if everywhere else f"on {ranks_text(_wrong(held, found), layout)}"
    text = f"ratio {ratio_text(factor)} {where}"
    if not _is_gradient(found):
        return text, ""
    if factor == 0.0:
        return f"{text}: nothing has arrived", ""
    axes = _by_need(layout, needs)
    axes = [axis for axis in axes if axis in needs] or axes
    for says, of in (
        ("a sum over {} ({} ranks) is missing", lambda degree: factor * degree),
        ("summed once too often over {} ({} ranks)", lambda degree: factor / degree),
    ):
        fits = [axis for axis in axes if abs(of(layout.degree(axis)) - 1) < ALIKE]
        if fits:  # several axes of one degree give one ratio: which it is, the figures do not say
            named = " or ".join(fits)
            return f"{text}: {says.format(named, layout.degree(fits[0]))}", fits[0] if len(fits) == 1 else ""
    return text, ""


def ratio_text(factor: float) -> str:
    """``0.500``; of a factor that three digits cannot tell from one, how far it is from it: ``1+1.0e-07``."""
    return f"{factor:.3f}" if abs(factor - 1.0) >= 1e-3 else f"1{factor - 1.0:+.1e}"


def _partial_sums(held: Held, found: Found, layout: Layout, needs: Sequence[str]) -> tuple[str, str]:
    """Ranks along one axis hold the same block with values that add up to the right one."""
    if not _is_gradient(found):
        return "", ""
    by_rank = _by_rank(held)
    for axis in _by_need(layout, needs):
        groups = [group for group in layout.groups(axis) if all(rank in by_rank for rank in group)]
        copies = [same for group in groups for same in _copies(group, by_rank)]
        if copies and all(len(c) > 1 and _adds_up([by_rank[rank] for rank in c]) for c in copies):
            return _missing_sum(found.name, axis, layout.degree(axis), copies), axis
    return "", ""


def _missing_sum(name: str, axis: str, degree: int, copies: Sequence[Sequence[int]]) -> str:
    """A sum over the whole axis, or over those of its ranks that hold the same block."""
    among = len(copies[0])
    over = f"{axis} ({degree} ranks)" if among == degree else f"{axis} ({among} of {degree} ranks)"
    text = f"each rank has a part of the sum: a sum over {over} is missing"
    if axis == "tp" and REPEATED.search(name):
        whose = " and ".join(", ".join(map(str, ranks)) for ranks in copies[:2])
        more = " …" if len(copies) > 2 else ""
        text += f"; a key/value head is repeated over {among} tp ranks (ranks {whose}{more})"
    return text


def _copies(group: Sequence[int], by_rank: Mapping[int, Sequence[Block]]) -> list[list[int]]:
    """The ranks of a group, those together that hold the same blocks."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for rank in group:
        place = tuple((tuple(b["starts"]), tuple(b["shape"])) for b in by_rank[rank])
        found.setdefault(place, []).append(rank)
    return list(found.values())


def _adds_up(group: Sequence[Sequence[Block]]) -> bool:
    for at, block in enumerate(group[0]):
        for k, right in enumerate(block["ours"]):
            values = [blocks[at]["theirs"][k] for blocks in group]
            size = max(abs(right), *(abs(v) for v in values))
            if abs(sum(values) - right) > ALIKE * size:
                return False
    return True


def _confined(held: Held, found: Found, layout: Layout, needs: Sequence[str]) -> tuple[str, str]:
    """Only ranks of one coordinate of an axis are wrong."""
    holders, wrong = {rank for rank, _ in held}, _wrong(held, found)
    if not wrong or wrong == holders:
        return "", ""
    named = ranks_text(wrong, layout)
    for axis in _by_need(layout, needs):
        places = {layout.coordinates(rank)[axis] for rank in wrong}
        if wrong == {rank for rank in holders if layout.coordinates(rank)[axis] in places}:
            # of one rank the name says its coordinates already
            of = f" ({axis}={','.join(map(str, sorted(places)))})" if len(wrong) > 1 else ""
            return f"wrong on {named}{of}, right on the others; {_place(found)}", axis
    return f"wrong on {named}, right on the others; {_place(found)}", ""


def _disagreement(held: Held, found: Found, layout: Layout, needs: Sequence[str]) -> tuple[str, str]:
    """All are wrong, and ranks that hold the same block hold different values of it."""
    by_rank = _by_rank(held)
    apart: dict[str, list[int]] = {}
    for axis in _by_need(layout, needs):
        for group in layout.groups(axis):
            for same in _copies([rank for rank in group if rank in by_rank], by_rank):
                if any(not _alike(by_rank[same[0]], by_rank[rank]) for rank in same[1:]):
                    apart.setdefault(axis, same)
    if not apart:
        return "", ""
    axis, ranks = next(iter(apart.items()))
    worst = {rank: max(block["error"] for block in by_rank[rank]) for rank in ranks}
    shown = ", ".join(f"{worst[r]:.1e} on {ranks_text({r}, layout)}" for r in ranks[:SHOWN])
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return f"replicas disagree, error {shown}{more}", axis if len(apart) == 1 else ""


def _alike(blocks: Sequence[Block], others: Sequence[Block]) -> bool:
    return all(
        abs(a - b) <= ALIKE * max(abs(a), abs(b))
        for one, other in zip(blocks, others, strict=True)
        for a, b in zip(one["theirs"], other["theirs"], strict=True)
    )


def _by_rank(held: Held) -> dict[int, list[Block]]:
    found: dict[int, list[Block]] = {}
    for rank, block in held:
        found.setdefault(rank, []).append(block)
    return found


def _wrong(held: Held, found: Found) -> set[int]:
    return {rank for rank, block in held if not block["error"] <= found.limit}


def _by_need(layout: Layout, needs: Sequence[str]) -> list[str]:
    """Axes of more than one rank; those that the failure needs first."""
    axes = [axis for axis in RANK_AXES if layout.degree(axis) > 1]
    return sorted(axes, key=lambda axis: (axis not in needs if needs else False, axes.index(axis)))


def _place(found: Found) -> str:
    """``rows 16–31 of dim 0``, where not all of a block is wrong."""
    block = found.block
    if "low" not in block or block["wrong"] >= block["of"]:
        return f"error {found.error:.1e}"
    spans = [
        f"{low}–{high - 1} of dim {dim}"
        for dim, (low, high, start, size) in enumerate(
            zip(block["low"], block["high"], block["starts"], block["shape"], strict=True)
        )
        if high - low < size or low > start
    ]
    where = f", elements {', '.join(spans)}" if spans else ""
    return f"error {found.error:.1e}, {block['wrong']} of {block['of']} values{where}"


def ranks_text(ranks: Iterable[int], layout: Layout) -> str:
    """``rank 3 (dp=1, tp=1)``; of several ranks their numbers."""
    numbers = sorted(ranks)
    if len(numbers) != 1:
        return "ranks " + ", ".join(map(str, numbers))
    at = layout.coordinates(numbers[0])
    return f"rank {numbers[0]} ({', '.join(f'{axis}={at[axis]}' for axis in RANK_AXES if layout.degree(axis) > 1)})"

"""What is wrong with a tensor that differs, and which axis it belongs to: from figures alone, never by guessing.

Three kinds of figures speak. *A constant factor*: all of the gradient is 1/n or n times what it should be. *Partial
sums*: ranks that hold the same block hold different values of it, and those of the ranks along one axis add up to the
right one, which is told from projections, since these are linear. *Which ranks*: only those of one coordinate of an
axis are wrong.

Beside them stand the reruns of a failing layout with less in it (``api/isolate.py``): what cannot be taken out
without the failure going away is what it needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.evidence.parity import Found, Judged, Report
from paceline.plan.layout import RANK_AXES, Layout

ALIKE = 1e-6
"""What two figures of a sum or a factor may differ by, relative."""

WHERE = {
    "dp": "deliver/dp.py",
    "fsdp": "deliver/fsdp.py",
    "tp": "deliver/tp.py",
    "cp": "deliver/cp.py",
    "ep": "deliver/ep.py",
    "etp": "deliver/ep.py",
    "pp": "update/pipeline/",
    "mbs": "update/passes.py",
    "recompute": "compute/models/recompute.py",
    "compile": "recipes/compiled.py",
    "offload": "deliver/fsdp.py",
    "zero": "deliver/fsdp.py",
    "schedule": "update/pipeline/",
    "vpp": "update/pipeline/",
    "cp_kind": "deliver/cp.py",
}


@dataclass(frozen=True)
class Difference:
    """The first thing that differs.

    Attributes:
        what: ``gradient``, ``state``, ``loss`` … name: of the tensor, or empty. step: from 1; 0 = after all.
        error: relative. text: what is wrong with it, in words. axis: whose it is, or empty.
        together: what a failing layout needs at least, as layout items (``dp=2``, ``pp=2``).
    """

    what: str
    name: str
    step: int
    error: float
    text: str
    axis: str = ""
    together: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values; an error that is no number is null."""
        return {**vars(self), "error": self.error if math.isfinite(self.error) else None}

    @property
    def headline(self) -> str:
        """``gradient of layers.0.input_layernorm.weight, step 1 · ratio 0.500 everywhere``."""
        of = f"{self.what} of {self.name}" if self.name else self.what
        when = f", step {self.step}" if self.step else ""
        return f"{of}{when}" + (f" · {self.text}" if self.text else "")


def first_difference(judged: Judged, layout: Layout, needs: Sequence[str] = ()) -> Difference | None:
    """The first difference of a leg; None where there is none.

    Args:
        needs: the items of the layout that the failure needs, where reruns have told (``tp``, ``recompute`` …).
    """
    if judged.equal:
        return None
    together = tuple(_items(layout, needs))
    if not judged.differing:
        return _of_numbers(judged, layout, needs, together)
    found = judged.differing[0]
    kind, _, step = found.kind.partition("-")
    norm = next((row for row in judged.rows if row.what.startswith("gradient norm")), None)
    if norm is not None and norm.step and (not step or norm.step < int(step)):
        text = f"error {norm.error:.1e}, while every gradient of this step is equal"
        return Difference(norm.what, "", norm.step, norm.error, text, _axis_of(needs, layout), together)
    text, axis = explain(found, judged.reports, layout, needs)
    loss = next(row for row in judged.rows if row.what.startswith("loss"))
    if loss.step and (not step or loss.step <= int(step)):
        text = "the loss differs too, so the forward does" + (f"; {text}" if text else "")
    name = found.name.removeprefix("model/").removeprefix("optimizer/")
    what = kind if kind == "gradient" else "value" if found.name.startswith("model/") else "optimizer state"
    return Difference(
        what, name, int(step or 0), found.error, text, axis or _axis_of(needs, layout), together
    )


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
    for tell in (_constant_factor, _partial_sums, _confined):
        text, axis = tell(held, found, layout, needs)
        if text:
            return text, axis
    return _place(found), ""


Held = Sequence[tuple[int, Mapping[str, Any]]]


def _partial_sums(held: Held, found: Found, layout: Layout, needs: Sequence[str]) -> tuple[str, str]:
    """Ranks along one axis hold the same block with values that add up to the right one."""
    by_rank: dict[int, list[Mapping[str, Any]]] = {}
    for rank, block in held:
        by_rank.setdefault(rank, []).append(block)
    for axis in _by_need(layout, needs):
        groups = [group for group in layout.groups(axis) if all(rank in by_rank for rank in group)]
        if groups and all(_adds_up([by_rank[rank] for rank in group]) for group in groups):
            degree = layout.degree(axis)
            return f"each rank has a part of the sum: a sum over {axis} ({degree} ranks) is missing", axis
    return "", ""


def _adds_up(group: Sequence[Sequence[Mapping[str, Any]]]) -> bool:
    first = group[0]
    for blocks in group:
        if [(b["starts"], b["shape"]) for b in blocks] != [(b["starts"], b["shape"]) for b in first]:
            return False
    for at, block in enumerate(first):
        for k, right in enumerate(block["ours"]):
            values = [blocks[at]["theirs"][k] for blocks in group]
            size = max(abs(right), *(abs(v) for v in values))
            if abs(sum(values) - right) > ALIKE * size:
                return False
    return True


def _constant_factor(held: Held, found: Found, layout: Layout, needs: Sequence[str]) -> tuple[str, str]:
    """Every block is the right one times the same number."""
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
    text = f"ratio {factor:.3f} {where}"
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


def _confined(held: Held, found: Found, layout: Layout, needs: Sequence[str]) -> tuple[str, str]:
    """Only ranks of one coordinate of an axis are wrong."""
    holders, wrong = {rank for rank, _ in held}, _wrong(held, found)
    if not wrong or wrong == holders:
        return "", ""
    named = ranks_text(wrong, layout)
    for axis in _by_need(layout, needs):
        places = {layout.coordinates(rank)[axis] for rank in wrong}
        if wrong == {rank for rank in holders if layout.coordinates(rank)[axis] in places}:
            of = f"{axis}={','.join(map(str, sorted(places)))}"
            return f"wrong on {named} ({of}), right on the others; {_place(found)}", axis
    return f"wrong on {named}, right on the others; {_place(found)}", ""


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


def _of_numbers(
    judged: Judged, layout: Layout, needs: Sequence[str], together: tuple[str, ...]
) -> Difference:
    """Every tensor is equal, and a loss or the norm is not."""
    row = next(row for row in judged.rows if not row.equal)
    text = f"error {row.error:.1e}, while every tensor is equal"
    return Difference(row.what, "", 0, row.error, text, _axis_of(needs, layout), together)


def _axis_of(needs: Sequence[str], layout: Layout) -> str:
    """The axis where there is no choice: the only one needed, or the only one there is."""
    axes = [need for need in needs if need in RANK_AXES or need in ("ep", "etp")]
    if needs:
        return axes[0] if len(axes) == 1 else needs[0] if len(needs) == 1 else ""
    there = [axis for axis in RANK_AXES if layout.degree(axis) > 1]
    return there[0] if len(there) == 1 else ""


def _items(layout: Layout, needs: Sequence[str]) -> Iterable[str]:
    for need in needs:
        value = getattr(layout, need)
        yield f"{need}={value}"

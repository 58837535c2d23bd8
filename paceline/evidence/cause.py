"""What differs first, and which axis it belongs to: from figures alone, never by guessing.

Four kinds of figures speak (``explain.py``). *A constant factor*: all of the gradient is 1/n or n times what it should
be. *Partial sums*: ranks that hold the same block hold different values of it, and those of the ranks along one axis
add up to the right one, which is told from projections, since these are linear. *Which ranks*: only those of one
coordinate of an axis are wrong. *Replicas*: all are wrong, and those that hold the same block disagree.

*When* speaks too: a step makes gradients, clips them by their norm, and updates weights; what is wrong first in this
order is what is wrong. Beside them stand the reruns of a failing layout with less in it (``api/isolate.py``): what
cannot be taken out without the failure going away is what it needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.evidence.explain import explain, ranks_text
from paceline.evidence.parity import Judged, Row
from paceline.plan.layout import RANK_AXES, Layout

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
        what: ``gradient``, ``value`` (a weight after the step), ``initial value``, ``optimizer state``, ``loss`` …
        name: of the tensor, or empty. step: from 1; 0 = before the first, or after all.
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
        after = "after step" if self.what == "value" else "step"
        when = f", {after} {self.step}" if self.step else ""
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
    if norm is not None and norm.step and (not step or _before(norm.step, kind, int(step))):
        text = (
            f"error {norm.error:.1e}{_on(norm, judged, layout)}, while every gradient of this step is equal"
        )
        return Difference(norm.what, "", norm.step, norm.error, text, _axis_of(needs, layout), together)
    text, axis = explain(found, judged.reports, layout, needs)
    loss = next(row for row in judged.rows if row.what.startswith("loss"))
    if loss.step and (not step or loss.step <= int(step)):
        text = "the loss differs too, so the forward does" + (f"; {text}" if text else "")
    elif kind == "weights" and step != "0":
        text = f"every gradient so far is equal, so the update is not; {text}"
    name = found.name.removeprefix("model/").removeprefix("optimizer/")
    axis = _experts_axis(axis, needs, layout) or axis or _axis_of(needs, layout)
    return Difference(_what(kind, step), name, int(step or 0), found.error, text, axis, together)


def _what(kind: str, step: str) -> str:
    if kind == "weights":
        return "value" if step != "0" else "initial value"
    return kind if kind == "gradient" else "optimizer state"


def _before(norm_step: int, kind: str, step: int) -> bool:
    """Whether the norm of a step comes before a kind of tensor: after its gradients, and before its weights."""
    return norm_step < step or (norm_step == step and kind == "weights")


def _of_numbers(
    judged: Judged, layout: Layout, needs: Sequence[str], together: tuple[str, ...]
) -> Difference:
    """Every tensor is equal, and a loss or the norm is not."""
    row = next(row for row in judged.rows if not row.equal)
    text = f"error {row.error:.1e}{_on(row, judged, layout)}, while every tensor is equal"
    return Difference(row.what, "", 0, row.error, text, _axis_of(needs, layout), together)


def _on(row: Row, judged: Judged, layout: Layout) -> str:
    """`` on rank 1 (tp=1)`` of a number that is wrong on some ranks only; all should have the same."""
    if not row.ranks or len(row.ranks) == len(judged.reports):
        return ""
    return f" on {ranks_text(row.ranks, layout)}, right on the others"


def _experts_axis(told: str, needs: Sequence[str], layout: Layout) -> str:
    """``ep`` where it is needed, and the other axes needed are only the ones that it lies on.

    *Experts add no ranks*: ep is cut out of the ranks of other axes, so a failure that needs ep needs these as well.
    """
    if "ep" not in needs:
        return ""
    inner = [layout.coordinates(rank) for rank in range(layout.ep * layout.etp)]
    under = {axis for axis in RANK_AXES if len({place[axis] for place in inner}) > 1}
    others = {need for need in needs if need in RANK_AXES} | ({told} if told else set())
    return "ep" if others <= under | {"ep"} else ""


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

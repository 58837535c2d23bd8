"""How tokens know their place: rotary, learned, scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.job.families.draft import Draft

LONG = 8192
_OURS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def read_positions(draft: Draft) -> None:
    """Into the draft: the longest sequence, and the rotary embedding."""
    values, widths = draft.values, draft.widths
    longest = values.whole("max_position_embeddings", 1)
    if longest is None:
        longest = LONG
        draft.notes.append(f"max_position_embeddings is not given: {LONG} taken")
    widths["max_position_embeddings"] = longest
    parameters = values.table("rope_parameters")
    if all(isinstance(part, Mapping) for part in parameters.values()) and parameters:
        parameters = dict(parameters.get("full_attention") or next(iter(parameters.values())))
    theta = parameters.get("rope_theta")
    known = isinstance(theta, int | float) and not isinstance(theta, bool) and theta > 0
    widths["rope_theta"] = float(theta) if known and theta else _theta(draft)
    _scaling(draft, values.table("rope_scaling") or parameters)
    parts = [values.raw(name) for name in ("partial_rotary_factor", "rotary_pct")]
    if any(part not in (None, 1, 1.0) for part in (*parts, parameters.get("partial_rotary_factor"))):
        draft.lack("rotary positions on a part of each head")


def _theta(draft: Draft) -> float:
    name = "rotary_emb_base" if draft.values.says("rotary_emb_base") else "rope_theta"
    return draft.values.real(name, 10000.0)


def _scaling(draft: Draft, scaling: Mapping[str, Any]) -> None:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return
    names = _OURS.get(kind) if isinstance(kind, str) else None
    if names is None or not all(_is_positive(scaling.get(name)) for name in names):
        draft.lack(f"rotary positions scaled by {kind!s:.20}")
        return
    draft.widths["rope_scaling"] = {"rope_type": kind, **{name: scaling[name] for name in names}}


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0

"""Which layers slide over a window."""

from __future__ import annotations

from paceline.job.families.draft import Draft

FULL, SLIDING = "full_attention", "sliding_attention"
_AS_FULL = ("full_attention", "global", "attention", "nope_attention")
_AS_SLIDING = ("sliding_attention", "local")


def read_windows(draft: Draft) -> None:
    """Into the draft: ``sliding_window`` and ``layer_types``."""
    family, values = draft.family, draft.values
    window = values.whole("sliding_window") or None
    words = values.words("layer_types")
    if family.window == "none" and not words:
        return
    switched_off = family.window == "switch" and not values.switch("use_sliding_window")
    if words:
        types = _given(draft, words)
    elif window is None or switched_off:
        return
    else:
        types = _patterned(draft)
    if switched_off or SLIDING not in types:
        return
    if window is None:
        raise values.missing("sliding_window")
    draft.widths |= {"sliding_window": window, "layer_types": types}


def _given(draft: Draft, words: tuple[str, ...]) -> tuple[str, ...]:
    """One word a layer, as the file gives them; what neither slides nor is full is counted as full."""
    if len(words) != draft.layers:
        raise draft.values.wrong("layer_types", f"one word for each of {draft.layers} layers")
    strange = sorted({word for word in words if word not in (*_AS_FULL, *_AS_SLIDING)})
    if strange:
        draft.lack(f"layers of {', '.join(strange)}")
        draft.notes.append(f"layers of {', '.join(strange)} are counted as full attention")
    return tuple(SLIDING if word in _AS_SLIDING else FULL for word in words)


def _patterned(draft: Draft) -> tuple[str, ...]:
    family, values, layers = draft.family, draft.values, range(draft.layers)
    if family.window == "pattern":
        every = _pattern(draft) or family.pattern
        return tuple(FULL if (n + 1) % every == 0 else SLIDING for n in layers)
    if family.window == "switch":
        first = values.whole("max_window_layers")
        return tuple(SLIDING if n >= (draft.layers if first is None else first) else FULL for n in layers)
    return (SLIDING,) * draft.layers


def _pattern(draft: Draft) -> int:
    """``sliding_window_pattern``: a number, or letters of which the last is the full layer (``LLLG``)."""
    values = draft.values
    for name in ("sliding_window_pattern", "_sliding_window_pattern"):
        if isinstance(values.raw(name), str):
            return len(values.text(name))
        if values.whole(name):
            return values.needed(name)
    return 0

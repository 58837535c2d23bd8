"""A step of a pipeline as text and as SVG: one row a place on ``pp``, time to the right, what stands still left blank.

With other axes a row is several ranks, which do the same at the same time, and it is named after all of them.

Both say in their title what matters: the layout, the bubble, and how many micro-batches are kept at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Protocol
from xml.sax.saxutils import escape

from paceline.ledger.plural import many
from paceline.plan.pipeline.clock import Slot, Timeline
from paceline.plan.pipeline.counts import Pipeline
from paceline.plan.pipeline.orders import KINDS, Action


class Cut(Pipeline, Protocol):
    """A pipeline, and how many ranks it has with all its other axes."""

    @property
    def world_size(self) -> int: ...


LAPS = "abcdefghijklmnopqrstuvwxyz"


def title(layout: Pipeline, timeline: Timeline) -> str:
    """``pp=4 · 8 micro-batches · bubble 27 % · 4 micro-batches kept at most``."""
    micro_batches = 1 + max(slot.action.micro_batch for slot in timeline.slots[0])
    peak = f"{timeline.peak_micro_batches:.3g}"
    return (
        f"{layout} · {many(micro_batches, 'micro-batch')} · bubble {100 * timeline.bubble:.0f} % · "
        f"{peak} kept at once on the fullest rank"
    )


def row_name(layout: Cut, place: int) -> str:
    """``rank 1``; ``pp 1 (ranks 4–7)`` where several ranks stand at that place: ``pp`` is the slowest axis."""
    several = layout.world_size // layout.pp
    if several == 1:
        return f"rank {place}"
    return f"pp {place} (ranks {place * several}–{(place + 1) * several - 1})"


def as_text(layout: Cut, timeline: Timeline, width: int = 100) -> str:
    """The schedule in ``width`` columns; a longer one is cut, and says so.

    An action is its kind and micro-batch (``F3``), with a letter for which of the rank's stages where there are
    several (``F3b``). Dots are a bubble.
    """
    several = layout.vpp > 1
    labels = [[_label(slot.action, layout, several) for slot in row] for row in timeline.slots]
    scale = _columns_per_second(timeline, labels)
    names = [row_name(layout, place) for place in range(len(timeline.slots))]
    widest = max(map(len, names)) + 1
    room = max(8, width - widest - 1)
    lines = [title(layout, timeline)]
    for name, row, words in zip(names, timeline.slots, labels, strict=True):
        text = _row(row, words, scale, round(timeline.makespan_s * scale))
        lines.append(name.ljust(widest) + (text if len(text) <= room else text[:room] + "…"))
    columns = round(timeline.makespan_s * scale)
    if columns > room:
        lines += wrap(f"cut: {100 * room // columns} % of the step is shown; the SVG has all of it", width)
    return "\n".join([*lines, *wrap(_legend(layout, timeline), width)])


def _label(action: Action, layout: Pipeline, several: bool) -> str:
    return f"{action.kind}{action.micro_batch}{LAPS[action.stage // layout.pp % 26] if several else ''}"


def _columns_per_second(timeline: Timeline, labels: Sequence[Sequence[str]]) -> float:
    """So that each label fits into its action, with a column to spare."""
    return max(
        (len(word) + 1) / (slot.end_s - slot.start_s)
        for row, words in zip(timeline.slots, labels, strict=True)
        for slot, word in zip(row, words, strict=True)
        if slot.end_s > slot.start_s
    )


def _row(row: Sequence[Slot], words: Sequence[str], scale: float, columns: int) -> str:
    text = ["."] * columns
    for slot, word in zip(row, words, strict=True):
        start, end = round(slot.start_s * scale), round(slot.end_s * scale)
        text[start:end] = list((word + "-" * (end - start - len(word) - 1))[: end - start - 1] + " ")
    return "".join(text)


def _legend(layout: Pipeline, timeline: Timeline) -> str:
    kinds = {slot.action.kind for row in timeline.slots for slot in row}
    words = [f"{kind} {KINDS[kind]}" for kind in "FBIW" if kind in kinds]
    if layout.vpp > 1:
        words.append(f"{', '.join(LAPS[: layout.vpp])} the rank's stages in order")
    return " · ".join(["number = micro-batch", *words, ". bubble"])


ROW, GAP, TOP, LETTER = 26, 6, 62, 8  # pixels
NAME_LETTER = 6.5  # pixels, of the letters of a row's name
TITLE_LETTER = 8.2  # pixels, of a bold sans-serif of 14, on the wide side
COLOURS = {"F": "#4c8fd6", "B": "#e08a3c", "I": "#e8b04a", "W": "#5aa469"}


def as_svg(layout: Cut, timeline: Timeline) -> str:
    """The whole schedule as one SVG document; every action has its own tooltip. Colour is never alone: the kind is
    written in each box that has room for it."""
    words = [[_label(slot.action, layout, several=False) for slot in row] for row in timeline.slots]
    scale = LETTER * _columns_per_second(timeline, words)
    head = title(layout, timeline)
    names = [row_name(layout, place) for place in range(len(timeline.slots))]
    left = round(24 + NAME_LETTER * max(map(len, names)))
    width = max(left + timeline.makespan_s * scale, TITLE_LETTER * len(head)) + 24
    height = TOP + len(timeline.slots) * (ROW + GAP) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="11">',
        f"<title>{escape(head)}</title>",
        f'<rect width="{width:.0f}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="22" font-size="14" font-weight="600" fill="#1d2733">{escape(head)}</text>',
        _key_svg({slot.action.kind for row in timeline.slots for slot in row}, left),
    ]
    for place, (name, row) in enumerate(zip(names, timeline.slots, strict=True)):
        y = TOP + place * (ROW + GAP)
        parts.append(f'<text x="12" y="{y + 17}" fill="#1d2733">{escape(name)}</text>')
        parts += _row_svg(row, layout, timeline.makespan_s, scale, left, y)
    at = TOP + len(timeline.slots) * (ROW + GAP) + 16
    parts.append(f'<text x="{left}" y="{at}" fill="#5b6673">time →</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _key_svg(kinds: set[str], left: int) -> str:
    parts, x = [], left
    for kind in [k for k in "FBIW" if k in kinds]:
        parts.append(f'<rect x="{x}" y="36" width="12" height="12" rx="2" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 17}" y="46" fill="#1d2733">{kind} {KINDS[kind]}</text>')
        x += 34 + 6 * len(KINDS[kind]) + 10
    parts.append(f'<rect x="{x}" y="36" width="12" height="12" rx="2" fill="#eef0f3" stroke="#c3cad3"/>')
    parts.append(f'<text x="{x + 17}" y="46" fill="#1d2733">bubble</text>')
    return "".join(parts)


def _row_svg(
    row: Sequence[Slot], layout: Pipeline, makespan_s: float, scale: float, left: int, y: int
) -> list[str]:
    parts = [
        f'<rect x="{left}" y="{y}" width="{makespan_s * scale:.1f}" height="{ROW}" fill="#eef0f3" stroke="#c3cad3"/>',
    ]
    for slot in row:
        x, width = left + slot.start_s * scale, (slot.end_s - slot.start_s) * scale
        action, lap = slot.action, slot.action.stage // layout.pp
        words = f"stage {action.stage}: {KINDS[action.kind]}, micro-batch {action.micro_batch}"
        shade = 1.0 - 0.5 * lap / max(1, layout.vpp)  # later stages of a rank are paler
        parts.append(
            f'<g><title>{words}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" '
            f'fill="{COLOURS[action.kind]}" fill-opacity="{shade:.2f}" stroke="#fff"/>'
            f'<text x="{x + width / 2:.1f}" y="{y + 17}" text-anchor="middle" fill="#10161d">'
            f"{action.kind}{action.micro_batch}</text></g>"
        )
    return parts

"""Which part of the model's depth this rank holds: pipeline stages as parts of the decoder."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.compute.models.decoder import Part
from paceline.job.presets import ModelWidths
from paceline.plan.layout import Layout
from paceline.plan.stages import stage_layers

TIED = "embed_tokens.weight"
"""The one weight that two stages may hold: the first looks tokens up in it, the last predicts with it."""


@dataclass(frozen=True)
class Stage:
    """One stage: its number in the pipeline, and what of the model it holds."""

    number: int
    part: Part


def stages_of(layout: Layout, rank: int, widths: ModelWidths, sequence_length: int) -> list[Stage]:
    """The stages of a rank, in the order of the pipeline; one stage with everything where there is none.

    They are cut by cost (``plan/stages.py``), to which attention adds by the length of a sequence.
    """
    here = layout.coordinates(rank)["pp"]
    layers = stage_layers(layout, widths, sequence_length)
    last = layout.stages - 1
    return [
        Stage(n, Part(layers[n], embeds=n == 0, predicts=n == last))
        for n in range(layout.stages)
        if layout.stage_rank(n) == here
    ]


def shared_by(layout: Layout, widths: ModelWidths) -> dict[str, tuple[int, ...]]:
    """Parameter name → pp coordinates of the ranks that hold it, for weights tied over stages."""
    if not widths.tie_word_embeddings or layout.stages == 1:
        return {}
    ends = {layout.stage_rank(0), layout.stage_rank(layout.stages - 1)}
    return {TIED: tuple(sorted(ends))}

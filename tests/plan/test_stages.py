"""Stages by cost: the head is counted, and a stage's time is in proportion."""

from __future__ import annotations

import pytest

from paceline.job.presets import ModelWidths
from paceline.plan.layout import Layout, balanced
from paceline.plan.model import flops_per_token, head_flops
from paceline.plan.stages import layer_costs, stage_layers, stage_units
from tests.tiny import tiny_widths


def wide_vocabulary() -> ModelWidths:
    """A head that weighs as much as several of its layers."""
    return tiny_widths(num_hidden_layers=12, vocab_size=2048)


def test_layers_and_head_are_all_of_the_model() -> None:
    for widths in (tiny_widths(), wide_vocabulary(), tiny_widths(sliding_window=4, num_experts=4)):
        assert sum(layer_costs(widths, 64)) + head_flops(widths) == flops_per_token(widths, 64)


def test_the_stage_with_the_head_holds_fewer_layers() -> None:
    widths = wide_vocabulary()
    sizes = [len(layers) for layers in stage_layers(Layout(pp=3), widths, 64)]
    assert sum(sizes) == 12
    assert sizes[2] < sizes[0]
    heaviest = max(unit.forward for unit in stage_units(stage_layers(Layout(pp=3), widths, 64), widths, 64))
    by_count = [balanced(12, 3, i) for i in range(3)]
    assert heaviest < max(unit.forward for unit in stage_units(by_count, widths, 64))


def test_units_are_of_the_mean_stage() -> None:
    widths = wide_vocabulary()
    units = stage_units([balanced(12, 4, i) for i in range(4)], widths, 64)
    assert sum(unit.forward for unit in units) / 4 == pytest.approx(1)
    assert units[0] == units[1]

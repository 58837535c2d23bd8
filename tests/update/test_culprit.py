"""A number that is not finite is told with its rank, its tensor and its batch, on every rank in the same words."""

from __future__ import annotations

import pytest

from tests.pool import RankPool

CASES = "tests.update.culprit_cases"


@pytest.mark.drill(39)
@pytest.mark.parametrize(
    ("layout", "poison", "told"),
    [
        ("single", "gradient", "gradients are not finite: layers.1.mlp.down_proj.weight"),
        ("single", "weight", "weights are not finite: layers.1.mlp.down_proj.weight"),
        ("dp=2", "weight", "weights are not finite on rank 1 of 2: layers.1.mlp.down_proj.weight"),
        ("dp=2", "loss", "the loss of its own rows is not finite on rank 1 of 2"),
        ("dp=2", "gradient", "gradients are not finite on ranks 0, 1 of 2: layers.1.mlp.down_proj.weight"),
        ("fsdp=3", "loss", "the loss of its own rows is not finite on rank 1 of 3"),
        ("fsdp=3", "weight", "weights are not finite on rank 1 of 3: layers.1.mlp.down_proj.weight"),
        (
            "fsdp=3",
            "gradient",
            "gradients are not finite on ranks 0, 1, 2 of 3: layers.1.mlp.down_proj.weight",
        ),
        ("pp=2", "loss", "the loss of its own rows is not finite on rank 1 of 2"),
        ("pp=2", "weight", "weights are not finite on rank 1 of 2: layers.3.mlp.down_proj.weight"),
    ],
)
def test_where_it_came_from(layout: str, poison: str, told: str, ranks: RankPool) -> None:
    world = int(layout.rpartition("=")[2]) if "=" in layout else 1
    found = ranks(world).run(f"{CASES}:poisoned", layout=layout, poison=poison)
    assert [one.partition(" and ")[0] for one in found] == [told] * world

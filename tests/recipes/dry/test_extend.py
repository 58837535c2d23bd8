"""Two depths and two numbers of micro-batches say what the whole step would have said: exactly."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.recipes.dry.extend import design, edge_of, period, with_depth
from paceline.recipes.dry.step import Question
from paceline.recipes.dry_run import dry_run
from paceline.recipes.stages import stages_of
from tests.recipes.dry.test_step import EXPERTS, ask
from tests.tiny import tiny_widths


def deep(layout: str, rank: int = 0, layers: int = 80, count: int = 8, **changes: Any) -> Question:
    return ask(layout, rank, widths=tiny_widths(num_hidden_layers=layers, **changes), count=count)


def rungs(asked: Question) -> tuple[tuple[int, ...], tuple[int, ...]]:
    chosen = design(asked)
    return chosen.depths.rungs, chosen.counts.rungs


def test_few_layers_and_micro_batches_are_run_as_they_are() -> None:
    assert rungs(deep("fsdp=2", layers=5, count=3)) == ((5,), (3,))


def test_many_are_cut_to_the_least_that_has_every_moment() -> None:
    assert rungs(deep("fsdp=2")) == ((4, 5), (2, 3))


def test_stages_lose_as_many_layers_each_and_keep_their_place() -> None:
    asked = deep("pp=4", rank=3, layers=82, count=32)
    (small, large), (few, more) = rungs(asked)
    assert large - small == 4
    assert (few, more) == (16, 20)

    def layers_by_rank(depth: int) -> list[int]:
        widths = tiny_widths(num_hidden_layers=depth)
        return [len(stages_of(asked.layout, rank, widths, 16)[0].part.layers) for rank in range(4)]

    whole, cut = layers_by_rank(82), layers_by_rank(small)
    assert cut[3] >= 4
    assert len({a - b for a, b in zip(whole, cut, strict=True)}) == 1


def test_dense_layers_in_front_and_patterns_are_kept() -> None:
    experts = tiny_widths(num_hidden_layers=40, **{**EXPERTS, "first_k_dense_replace": 3})
    assert edge_of(experts) == 4
    kinds = ("sliding_attention",) * 5 + ("full_attention",)
    mixed = tiny_widths(num_hidden_layers=48, layer_types=kinds * 8, sliding_window=8)
    assert period(mixed) == 6
    (small, large), _ = rungs(ask("single", widths=mixed))
    assert (small, large) == (12, 18)
    assert with_depth(mixed, 12).layer_types == kinds * 2
    odd = tiny_widths(num_hidden_layers=12, layer_types=("full_attention",) + ("sliding_attention",) * 11)
    assert rungs(ask("single", widths=odd))[0] == (12,)


@pytest.mark.parametrize(
    ("layout", "rank", "layers", "count", "changes"),
    [
        ("fsdp=2", 1, 6, 4, {}),
        ("tp=2,fsdp=2,recompute=full", 1, 6, 1, {}),
        ("pp=2", 1, 12, 3, {}),
        ("pp=2", 1, 4, 12, {}),
        ("fsdp=2,ep=2", 0, 6, 1, EXPERTS),
    ],
)
def test_the_extension_is_the_whole(
    layout: str, rank: int, layers: int, count: int, changes: dict[str, Any]
) -> None:
    asked = deep(layout, rank, layers=layers, count=count, **changes)
    said: list[str] = []
    short = dry_run(asked, said.append).to_dict()
    whole = dry_run(asked, said.append, extended=False).to_dict()
    assert len(said) > 2, "nothing was extended"
    for name in ("moment", "messages", "message_bytes", "parameters", "layers"):
        assert short[name] == whole[name], name
    # a pipeline's few counters of micro-batches are not linear in their number: bytes, in hundreds of thousands
    assert short["memory"] == pytest.approx(whole["memory"], abs=16)
    for moment, nbytes in short["moments"].items():
        assert whole["moments"][moment] == pytest.approx(nbytes, abs=16), moment

"""A pipeline computes what one device computes: every schedule, ragged counts, uneven stages, calls in a row."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pool import RankError, RankPool
from tests.update.pipeline.toy import LENGTH, ROWS, WIDTH, batches, on_one_device

CASE = "tests.update.pipeline.cases:step"
EXACT = 1e-13


def agree(found: list[dict[str, Any]], layers: int, total: int, documents: bool = True) -> None:
    """Loss and every gradient of every rank against one device."""
    loss, wanted = on_one_device(layers, batches(total, documents=documents))
    floor = 1e-4 * max(float(g.abs().max()) for g in wanted.values())
    seen = set()
    for rank in found:
        for name, got in rank["gradients"].items():
            assert got.isfinite().all(), name
            scale = max(float(wanted[name].norm()), floor)
            assert float((got - wanted[name]).norm()) / scale < EXACT, name
            seen.add(name)
    assert seen == set(wanted)
    assert sum({r["loss"] for r in found}) == pytest.approx(loss, rel=EXACT)


@pytest.mark.parametrize(
    ("layout", "layers", "micro_batches"),
    [
        ("pp=2:gpipe", 5, 3),  # B038: five layers on two stages
        ("pp=2", 5, 4),
        ("pp=2:interleaved", 5, 4),
        ("pp=2:interleaved,vpp=3", 7, 2),
        ("pp=2:zero-bubble", 5, 4),
        ("pp=2:zbv", 5, 3),
        ("pp=2:dualpipev", 5, 5),
    ],
)
def test_equals_one_device(ranks: RankPool, layout: str, layers: int, micro_batches: int) -> None:
    agree(
        ranks(2).run(CASE, layout=layout, layers=layers, micro_batches=micro_batches), layers, micro_batches
    )


@pytest.mark.parametrize("layout", ["pp=3", "pp=3:gpipe", "pp=4:zbv", "pp=3:interleaved", "pp=3:zero-bubble"])
def test_equals_one_device_on_more_ranks(ranks: RankPool, layout: str) -> None:
    count = 4 if layout == "pp=3" else 3
    agree(ranks(int(layout[3])).run(CASE, layout=layout, layers=9, micro_batches=count), 9, count)


@pytest.mark.parametrize("layout", ["pp=2", "pp=2:interleaved", "pp=2:zbv"])
def test_calls_in_a_row_scale_each_gradient_once(ranks: RankPool, layout: str) -> None:
    """B004: three rounds of four micro-batches are one round of twelve."""
    found = ranks(2).run(CASE, layout=layout, layers=4, micro_batches=4, calls=3)
    agree(found, 4, 12)


def test_batches_without_positions_and_segments(ranks: RankPool) -> None:
    agree(
        ranks(2).run(CASE, layout="pp=2", layers=2, micro_batches=2, documents=False), 2, 2, documents=False
    )


def test_nothing_but_the_stream_is_sent(ranks: RankPool) -> None:
    """No pickled shapes: four micro-batches there and back, the two evaluations, and torch's vote of four bytes."""
    found = ranks(2).run(CASE, layout="pp=2", layers=2, micro_batches=4)
    stream = ROWS * LENGTH * WIDTH * 8
    sent, received = ("pp", "send"), ("pp", "recv")
    assert found[0]["sent"] == {(*sent, 4): 1, (*sent, stream): 6, (*received, 4): 1, (*received, stream): 4}
    assert found[1]["sent"] == {(*sent, 4): 1, (*sent, stream): 4, (*received, 4): 1, (*received, stream): 6}


@pytest.mark.parametrize("layout", ["pp=2", "pp=2:interleaved", "pp=2:zbv"])
def test_an_evaluation_is_the_loss_sum_of_one_device(ranks: RankPool, layout: str) -> None:
    found = ranks(2).run(CASE, layout=layout, layers=4, micro_batches=4)
    wanted, _ = on_one_device(4, batches(4)[:2])
    assert sum(rank["evaluated"] for rank in found) == pytest.approx(wanted, rel=EXACT)
    assert sorted(rank["evaluated"] > 0 for rank in found) == [False, True]


def test_too_few_micro_batches_are_refused_before_anything_is_sent(ranks: RankPool) -> None:
    """B040: never a hang."""
    with pytest.raises(RankError, match="pp=3:1f1b cannot run 2 micro-batches a step: it takes 3, 4, 5, 6"):
        ranks(3).run(CASE, layout="pp=3", layers=3, micro_batches=2, timeout_s=30)


@pytest.mark.parametrize("layout", ["pp=2", "pp=2:interleaved", "pp=2:zbv"])
def test_no_receive_buffer_outlives_its_micro_batch(ranks: RankPool, layout: str) -> None:
    assert [r["buffers"] for r in ranks(2).run(CASE, layout=layout, layers=4, micro_batches=4)] == [0, 0]

"""The dry run against runs: every message of real ranks, and the allocator of a real step."""

from __future__ import annotations

import pytest

from paceline.plan.layout import Layout
from paceline.recipes.dry.memory import Kind
from paceline.recipes.dry.step import Question, Trace, fake_step
from tests.pool import RankPool
from tests.recipes.dry.cases import allocated
from tests.tiny import tiny_job, tiny_widths

LAYOUTS = (
    "dp=2",
    "fsdp=2",
    "fsdp=2:zero1",
    "fsdp=3:zero2",
    "dp=2,fsdp=2",
    "tp=2",
    "cp=2",
    "cp=2:ulysses",
    "fsdp=2,tp=2",
    "fsdp=2,cp=2",
    "dp=2,tp=2",
)


def ask(layout: str, rank: int = 0, **changes: object) -> Question:
    base = {
        "job": tiny_job(),
        "widths": tiny_widths(),
        "layout": Layout.parse(layout),
        "rank": rank,
        "precision": "fp32",
        "rows": 2,
        "count": 2,
    }
    return Question(**{**base, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_message_of_real_ranks_is_counted_to_the_byte(layout: str, ranks: RankPool) -> None:
    world = Layout.parse(layout).world_size
    sent = ranks(world).run(
        "tests.recipes.dry.cases:second_step",
        job=tiny_job(), widths=tiny_widths(), layout=layout, precision="fp32", rows=2, count=2,
    )  # fmt: skip
    for rank in {0, world - 1}:
        assert fake_step(ask(layout, rank)).calls == sent[rank], f"rank {rank}"


@pytest.mark.parametrize(("precision", "count"), [("fp32", 1), ("fp32", 2), ("bf16", 2)])
def test_the_peak_is_what_torchs_allocator_gave_out(precision: str, count: int) -> None:
    widths = tiny_widths(hidden_size=128, intermediate_size=352, vocab_size=1000, head_dim=32)
    job = tiny_job(data__sequence_length=128)
    real = allocated(job, widths, precision, 2, count, 128)
    trace = fake_step(ask("single", job=job, widths=widths, precision=precision, count=count))
    peak = held(trace)
    assert real["most"] > 1.5 * real["before"]
    assert abs(peak / real["most"] - 1) < 0.01
    _, kinds = trace.peak()
    parameters = 4 * trace.parameters
    assert kinds[Kind.WEIGHTS] == parameters
    assert kinds[Kind.GRADIENTS] == (parameters if count > 1 else 0)
    assert parameters * 2 <= kinds[Kind.OPTIMIZER] <= parameters * 2.01


def held(trace: Trace) -> int:
    return sum(trace.peak()[1].values())

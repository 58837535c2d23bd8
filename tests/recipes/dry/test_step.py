"""The dry run against runs: every message of real ranks to the byte, and what torch's allocator gave out."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.plan.layout import Layout
from paceline.recipes.dry.memory import Kind
from paceline.recipes.dry.step import Question, fake_step
from tests.pool import RankPool
from tests.recipes.dry.cases import allocated
from tests.tiny import tiny_job, tiny_widths

EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "router_aux_loss_coef": 0.01,
    "first_k_dense_replace": 1,
}
LAYOUTS = {
    "dp=2": 2,
    "fsdp=2:zero1": 2,
    "fsdp=3:zero2": 2,
    "dp=2,fsdp=2": 1,
    "fsdp=2,tp=2": 2,
    "dp=2,tp=2,recompute=full": 1,
    "cp=2": 1,
    "cp=2:ulysses,fsdp=2": 2,
    "pp=2:interleaved": 4,
    "fsdp=2,pp=2": 3,
    "tp=2,pp=2:zbv": 4,
    "fsdp=2,ep=2": 2,
    "tp=2,ep=2": 1,
}
"""Layout → micro-batches."""


def ask(layout: str, rank: int = 0, **changes: Any) -> Question:
    base = {"job": tiny_job(), "widths": tiny_widths(), "precision": "fp32", "rows": 2, "count": 2}
    return Question(layout=Layout.parse(layout), rank=rank, **{**base, **changes})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_and_memory_are_those_of_real_ranks(layout: str, ranks: RankPool) -> None:
    """Messages to the byte; memory but for what differs with the moment at which a message lets go of its tensors.

    Kinds are compared at one moment, the peak of the dry run: two moments may hold as much but for 0.3 %, and which
    of them is a real rank's peak is then decided by when its messages end.
    """
    world, count = Layout.parse(layout).world_size, LAYOUTS[layout]
    widths = tiny_widths(
        hidden_size=64, intermediate_size=176, head_dim=16, **(EXPERTS if "ep=" in layout else {})
    )
    asked = {"job": tiny_job(data__sequence_length=128), "widths": widths, "rows": 2, "count": count}
    real = ranks(world).run("tests.recipes.dry.cases:second_step", layout=layout, precision="fp32", **asked)
    for rank in {0, world - 1}:
        trace = fake_step(ask(layout, rank, **asked))
        assert trace.calls == real[rank]["calls"], f"rank {rank}"
        moment, fake = trace.peak()
        held = real[rank]["memory"][moment]
        most = max(sum(each.values()) for each in real[rank]["memory"].values())
        assert sum(fake.values()) / most == pytest.approx(1, abs=0.02)
        assert sum(fake.values()) / sum(held.values()) == pytest.approx(1, abs=0.02)
        for kind in (Kind.WEIGHTS, Kind.GRADIENTS, Kind.OPTIMIZER, Kind.WORKING_WEIGHTS):
            assert fake[kind] == held[kind], kind


@pytest.mark.parametrize(("precision", "count"), [("fp32", 1), ("fp32", 2), ("bf16", 2)])
def test_the_peak_is_what_torchs_allocator_gave_out(precision: str, count: int) -> None:
    widths = tiny_widths(hidden_size=128, intermediate_size=352, vocab_size=1000, head_dim=32)
    job = tiny_job(data__sequence_length=128)
    asked: dict[str, Any] = {"job": job, "widths": widths, "precision": precision, "rows": 2, "count": count}
    real = allocated(**asked)
    trace = fake_step(ask("single", **asked))
    _, kinds = trace.peak()
    assert real["most"] > 1.5 * real["before"]
    assert sum(kinds.values()) / real["most"] == pytest.approx(1, abs=0.002)
    parameters = 4 * trace.parameters
    assert kinds[Kind.WEIGHTS] == parameters
    assert kinds[Kind.GRADIENTS] == (parameters if count > 1 else 0)
    assert parameters * 2 <= kinds[Kind.OPTIMIZER] <= parameters * 2.01

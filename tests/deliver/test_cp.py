"""Context parallelism: which tokens a rank has, and attention that equals one device's under any mask."""

from __future__ import annotations

import pytest
import torch

from paceline.deliver import cp
from paceline.deliver.zigzag import chunks, dealt, natural
from paceline.ledger.outcome import Refused
from tests.deliver.cp_cases import HEADS, LOOKS
from tests.pool import RankPool

CASES = "tests.deliver.cp_cases"


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_every_token_is_somewhere_once_and_the_order_comes_back(degree: int) -> None:
    length = 12 * degree
    held = torch.cat([cp.rows(length, degree, index) for index in range(degree)])
    assert held.sort().values.tolist() == list(range(length))
    order = torch.arange(length)
    assert dealt(order, degree, 0).tolist() == held.tolist()
    assert natural(held, degree, 0).tolist() == order.tolist()


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_every_rank_has_the_same_work(degree: int) -> None:
    length = 16 * degree
    seen = {int((cp.rows(length, degree, index) + 1).sum()) for index in range(degree)}
    assert len(seen) == 1


def test_take_cuts_what_belongs_to_a_token_and_leaves_segments_whole() -> None:
    tokens = torch.arange(16).view(2, 8)
    batch = {"tokens": tokens, "targets": tokens + 1, "segments": tokens // 3}
    first, second = (cp.take(batch, 2, index) for index in (0, 1))
    assert first["tokens"].tolist() == [[0, 1, 6, 7], [8, 9, 14, 15]]
    assert second["targets"].tolist() == [[3, 4, 5, 6], [11, 12, 13, 14]]
    assert first["positions"].tolist() == [[0, 1, 6, 7]] * 2
    assert first["segments"].equal(batch["segments"])


def test_take_keeps_positions_that_restart_with_a_document() -> None:
    batch = {
        "tokens": torch.zeros(1, 8, dtype=torch.long),
        "positions": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0]]),
    }
    assert cp.take(batch, 2, 1)["positions"].tolist() == [[2, 0, 1, 2]]


def test_a_row_that_cannot_be_dealt_is_refused_with_a_length_that_can() -> None:
    with pytest.raises(Refused) as refused:
        chunks(18, 4, 0)
    assert refused.value.exit_code == 10
    assert refused.value.use == "data.sequence_length = 16"


@pytest.mark.parametrize("kind", ["allgather", "ulysses"])
@pytest.mark.parametrize("count", [2, 4])
def test_attention_equals_one_device_under_any_mask(ranks: RankPool, kind: str, count: int) -> None:
    for found in ranks(count).run(f"{CASES}:attention", kind=kind, looks=list(LOOKS), heads=list(HEADS)):
        assert {case: e for case, e in found.items() if e > 1e-12} == {}


@pytest.mark.parametrize(
    ("kind", "forward"),
    [
        # k and v of the whole row: 2 heads × 8 tokens × (4 + 4) numbers × 8 bytes, in one message
        ("allgather", [("all_gather", 1024)]),
        # q, k and v of this rank's tokens: 8 heads × 4 tokens × 4 numbers; then the output of 4 heads
        ("ulysses", [("all_to_all", 1024), ("all_to_all", 512)]),
    ],
)
def test_a_layer_costs_these_messages_and_their_mirror_images(
    ranks: RankPool, kind: str, forward: list[tuple[str, int]]
) -> None:
    back = [("reduce_scatter" if op == "all_gather" else op, size) for op, size in reversed(forward)]
    for calls in ranks(2).run(f"{CASES}:traffic", kind=kind):
        assert calls == forward + back


def test_ring_is_refused_by_name_with_what_runs(ranks: RankPool) -> None:
    assert ranks(2).run(f"{CASES}:refused", kind="ring", heads=4) == [(2, "--layout cp=2:allgather")] * 2


def test_ulysses_refuses_heads_that_it_cannot_share(ranks: RankPool) -> None:
    assert ranks(2).run(f"{CASES}:refused", kind="ulysses", heads=3) == [(10, "--layout cp=2:allgather")] * 2


@pytest.mark.parametrize("kind", ["allgather", "ulysses"])
@pytest.mark.parametrize("valid", ["all", "second half", "one rank's", "none"])
@pytest.mark.parametrize("documents", [False, True], ids=["one document", "documents"])
def test_a_decoder_equals_one_device_wherever_its_valid_tokens_are(
    ranks: RankPool, kind: str, valid: str, documents: bool
) -> None:
    """B008, B058: masked prompts, and ranks without a valid token, which weigh zero and give no NaN."""
    found = ranks(2).run(f"{CASES}:decoder", kind=kind, valid=valid, documents=documents)
    assert max(found) <= 1e-12


def test_a_compiled_block_gives_the_same(ranks: RankPool) -> None:
    options = {"kind": "allgather", "valid": "all", "documents": True, "compiled": True}
    assert max(ranks(2).run(f"{CASES}:decoder", timeout_s=180, **options)) <= 1e-12

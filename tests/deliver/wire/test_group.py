"""The wire on real ranks: it carries everything torch sends, and books it rightly."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from paceline.ledger.outcome import Exit
from tests.pool import RankError, RankPool

CASES = "tests.deliver.wire.cases"


def test_every_verb_gives_what_torch_promises_and_is_counted(ranks: RankPool) -> None:
    results = ranks(2).run(f"{CASES}:every_verb")
    for rank, (out, rows) in enumerate(results):
        assert out["all_reduce"] == [1.0] * 4
        assert out["broadcast"] == [1.0] * 4
        assert out["all_gather"] == out["all_gather_into_tensor"] == [0.0, 0.0, 1.0, 1.0]
        assert out["reduce_scatter_tensor"] == [4.0 * rank, 4.0 * rank + 2]
        assert out["all_to_all_single"] == [rank, rank + 10.0]
        assert out["reduce"] == ([1.0] if rank == 0 else None)
        assert out["gather"] == ([0.0, 1.0] if rank == 0 else None)
        assert out["scatter"] == [float(rank)]
        assert out["functional all_reduce"] == [2.0, 2.0]
        assert out["functional all_gather"] == [0.0, 1.0]
        assert out["functional reduce_scatter"] == [2.0]
        assert out["objects"] == [{"rank": 0}, {"rank": 1}]
        verbs = Counter(op for op, _, _ in rows)
        assert verbs == {
            "all_reduce": 2,
            "broadcast": 1,
            "all_gather": 5,
            "reduce_scatter": 2,
            "all_to_all": 1,
            "reduce": 1,
            "gather": 1,
            "scatter": 1,
            "barrier": 1,
        }
        assert [seq for _, seq, _ in rows] == list(range(len(rows)))
        assert rows[0] == ("all_reduce", 0, 16)
        assert rows[2] == ("all_gather", 2, 16)
    assert [(op, seq) for op, seq, _ in results[0][1]] == [(op, seq) for op, seq, _ in results[1][1]]


def test_both_ends_of_a_message_have_the_same_group_and_number(ranks: RankPool) -> None:
    results = ranks(3).run(f"{CASES}:ring")
    sent = {(group, seq) for rows in results for op, group, seq in rows if op == "send"}
    received = {(group, seq) for rows in results for op, group, seq in rows if op == "recv"}
    assert sent == received
    assert len(sent) == 9
    assert ("0-2:2>0", 2) in sent


@pytest.mark.parametrize("hook", [False, True])
def test_ddp_stands_still_for_a_late_peer_under_deliver_and_not_under_backward(
    ranks: RankPool, hook: bool
) -> None:
    """DDP waits in C++, where no hook sees it: the time must not look like compute."""
    late_s = 1.0
    results = ranks(2).run(f"{CASES}:ddp_books", late_s=late_s, hook=hook)
    assert all(result["synchronised"] for result in results)
    early = results[0]
    blocked = early["seconds"]["deliver", "dp/all_reduce"]
    assert blocked > 0.7 * late_s  # rank 1 is late from rank 0's first bucket on, a little before its wait
    for result in results:
        waits = sorted((row[7], row[8]) for row in result["rows"] if row[7] is not None)
        assert all(start <= end for start, end in waits)
        assert all(a[1] <= b[0] for a, b in pairwise(waits)), "waits overlap: counted twice"
    assert len(early["rows"]) > 3, "more than one bucket, or the test shows nothing"
    stood_still = sum(row[8] - row[7] for row in early["rows"] if row[7] is not None)
    assert 0.7 * late_s < stood_still <= blocked


def test_each_axis_of_a_mesh_has_its_own_books(ranks: RankPool) -> None:
    results = ranks(4).run(f"{CASES}:hsdp_axes")
    for rank, found in enumerate(results):
        assert set(found) == {("fsdp", "all_gather"), ("fsdp", "reduce_scatter"), ("dp", "all_reduce")}
        row, column = ("0,1", "2,3")[rank // 2], ("0,2", "1,3")[rank % 2]
        assert found["fsdp", "all_gather"] == found["fsdp", "reduce_scatter"] == {row}
        assert found["dp", "all_reduce"] == {column}


def test_work_behind_compute_is_not_blocked_and_ends_when_it_ends(ranks: RankPool) -> None:
    for rows in ranks(2).run(f"{CASES}:overlapped", compute_s=0.2):
        waited, future, dropped = (row for row in rows if row[0] == "all_reduce")
        assert [row[1] for row in (waited, future, dropped)] == [0, 1, 2]
        assert waited[3] is True
        assert future[3] is False
        assert dropped[3] is False
        assert 0 < future[2] < 0.2
        assert dropped[2] < 0.2


def test_different_sizes_end_the_rank_in_gloo(ranks: RankPool) -> None:
    """gloo aborts the process, so there is nothing to catch: the launcher reads it in the log (tests/faults).
    The day gloo raises instead, this fails, and the wire can name the call itself."""
    with pytest.raises(RankError, match="process ended with exit code -6"):
        ranks(2).run(f"{CASES}:wrong_size", world_timeout_s=5)


def test_a_late_peer_is_a_hang_with_the_number_of_the_call(ranks: RankPool) -> None:
    with pytest.raises(RankError) as caught:
        ranks(2).run(f"{CASES}:late_peer", world_timeout_s=2)
    assert "a peer did not answer in all_reduce #0 on world (0,1)" in caught.value.by_rank[1]


def test_a_killed_peer_is_named_as_lost(ranks: RankPool) -> None:
    with pytest.raises(RankError) as caught:
        ranks(2).run(f"{CASES}:die_on", rank=0)
    assert caught.value.rank == 0
    assert "lost a peer in all_reduce #1 on world (0,1)" in caught.value.by_rank[1]


def test_exit_codes_of_the_three_troubles() -> None:
    assert (Exit.RANK_DIED, Exit.HUNG, Exit.DISAGREE) == (58, 31, 32)


def test_no_port_is_open_beyond_the_loopback(ranks: RankPool) -> None:
    found: list[list[str]] = ranks(4).run(f"{CASES}:open_ports")
    assert all(addresses for addresses in found), (
        "gloo listens somewhere, or the test looks in the wrong place"
    )
    addresses: set[Any] = {address for rank in found for address in rank}
    assert addresses == {"tcp 127.0.0.1"}

"""Whose fault a wait was, and that moving it never changes a rank's sum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.ledger.accounts import (
    accounts,
    rank_accounts,
    read_rank,
    split_waits,
    step_accounts,
    where_time_went,
)
from paceline.ledger.folder import RunFolder, create
from paceline.ledger.spans import CallRow, Ledger
from tests.ledger.test_spans import FakeClock


def write_step(path: Path, rank: int, compute_s: float, last_s: float, move_s: float = 0.5) -> None:
    """One rank's step: compute, then an all-reduce that moves bytes once the last rank has arrived."""
    clock = FakeClock(100.0)
    ledger = Ledger(path, rank=rank, clock=clock)
    ledger.started()
    with ledger.span("compute", "forward"):
        clock.tick(compute_s)
    arrival = clock()
    with ledger.span("deliver", "all-reduce dp"):
        clock.tick(last_s - compute_s + move_s)
    ledger.call(CallRow("dp", "dp:0", "all_reduce", 0, 8, arrival, clock(), arrival, clock()))
    ledger.close_step(1)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = create(tmp_path, "r")
    for rank, compute_s in enumerate([1.0, 3.0, 2.0]):
        write_step(made.ledger(rank), rank, compute_s, last_s=3.0)
    return made


def test_waiting_for_a_late_peer_is_idle_and_the_late_rank_is_named(folder: RunFolder) -> None:
    found = accounts(folder)
    assert found[0].seconds == {
        ("compute", "forward"): 1.0,
        ("deliver", "all-reduce dp"): 0.5,
        ("idle", "peer"): 2.0,
    }
    assert found[1].seconds == {("compute", "forward"): 3.0, ("deliver", "all-reduce dp"): 0.5}
    assert found[2].seconds[("idle", "peer")] == 1.0
    split = split_waits([read_rank(folder.ledger(r)) for r in range(3)])
    assert split.late_s == {1: 3.0}
    assert split.latest_rank == 1


def test_where_time_went_adds_the_ranks_and_its_shares_sum_to_one(folder: RunFolder) -> None:
    rows = where_time_went(folder)
    assert [(r["phase"], r["reason"], r["seconds"]) for r in rows] == [
        ("compute", "forward", 6.0),
        ("deliver", "all-reduce dp", 1.5),
        ("idle", "peer", 3.0),
        ("unattributed", "", 0.0),
    ]
    assert sum(r["share"] for r in rows) == pytest.approx(1.0)


def test_a_wait_that_began_later_than_the_arrival_is_clipped(tmp_path: Path) -> None:
    """An asynchronous call: posted at 0, waited for from 2; the peer came at 3, so 1 s was idle and not 3."""
    clock = FakeClock(0.0)
    early = Ledger(tmp_path / "rank-00000.jsonl", 0, clock=clock)
    early.started()
    with early.span("compute", "backward"):
        clock.tick(2.0)
    with early.span("deliver", "reduce-scatter fsdp"):
        clock.tick(2.0)
    early.call(CallRow("fsdp", "g", "reduce_scatter", 5, 8, 0.0, 4.0, 2.0, 4.0))
    early.close_step(1)
    late = Ledger(tmp_path / "rank-00001.jsonl", 1, clock=FakeClock(0.0))
    late.call(CallRow("fsdp", "g", "reduce_scatter", 5, 8, 3.0, 4.0, None, None))
    late.close_step(1)
    ranks = [read_rank(tmp_path / f"rank-0000{r}.jsonl") for r in range(2)]
    seconds = rank_accounts(split_waits(ranks).ranks[0]).seconds
    assert seconds == {
        ("compute", "backward"): 2.0,
        ("deliver", "reduce-scatter fsdp"): 1.0,
        ("idle", "peer"): 1.0,
    }


def test_a_wait_outside_a_deliver_span_stays_where_it_was_booked(tmp_path: Path) -> None:
    for rank, arrival in enumerate([1.0, 3.0]):
        clock = FakeClock(0.0)
        ledger = Ledger(tmp_path / f"rank-0000{rank}.jsonl", rank, clock=clock)
        ledger.started()
        with ledger.span("compute", "loss"):
            clock.tick(4.0)
        ledger.call(CallRow("dp", "g", "all_reduce", 0, 8, arrival, 4.0, arrival, 4.0))
        ledger.close_step(1)
    ranks = [read_rank(tmp_path / f"rank-0000{r}.jsonl") for r in range(2)]
    assert rank_accounts(split_waits(ranks).ranks[0]).seconds == {("compute", "loss"): 4.0}


def test_ranks_of_different_hosts_are_compared_by_their_unix_clocks(tmp_path: Path) -> None:
    """Two hosts whose monotonic clocks are 5000 s apart: arrivals must not be compared as they stand."""
    paths = [tmp_path / f"rank-0000{r}.jsonl" for r in range(2)]
    for rank, path in enumerate(paths):
        write_step(path, rank, compute_s=1.0 + rank, last_s=2.0)

    header, *rest = paths[1].read_text().splitlines()
    other = json.loads(header) | {"host": "elsewhere"}
    first = json.loads(paths[0].read_text().splitlines()[0])
    other["origin_s"] += 5000.0
    other["origin_unix_s"] = first["origin_unix_s"]
    paths[1].write_text("\n".join([json.dumps(other), *rest]) + "\n")
    split = split_waits([read_rank(path) for path in paths])
    assert split.late_s == {1: pytest.approx(1.0)}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.floats(min_value=0, max_value=2), min_size=3, max_size=3), min_size=1, max_size=5)
)
def test_splitting_never_changes_a_ranks_sum(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[float]]
) -> None:
    folder = tmp_path_factory.mktemp("split")
    clocks = [FakeClock(0.0) for _ in range(3)]
    ledgers = [Ledger(folder / f"rank-0000{r}.jsonl", r, clock=clocks[r]) for r in range(3)]
    for seq, compute in enumerate(steps):
        arrivals = [clock() + s for clock, s in zip(clocks, compute, strict=True)]
        for rank, (ledger, clock) in enumerate(zip(ledgers, clocks, strict=True)):
            with ledger.span("compute", "forward"):
                clock.tick(compute[rank])
            with ledger.span("deliver", "all-reduce"):
                clock.tick(max(arrivals) - clock() + 0.25)
            ledger.call(CallRow("dp", "g", "ar", seq, 8, arrivals[rank], clock(), arrivals[rank], clock()))
            ledger.close_step(seq)
    ranks = [read_rank(folder / f"rank-0000{r}.jsonl") for r in range(3)]
    split = split_waits(ranks)
    for before, after in zip(ranks, split.ranks, strict=True):
        sums = rank_accounts(after)
        assert sum(sums.seconds.values()) + sums.unattributed_s == pytest.approx(sums.wall_s, abs=1e-6)
        assert sums.wall_s == rank_accounts(before).wall_s
        assert sums.seconds[("deliver", "all-reduce")] == pytest.approx(0.25 * len(steps), abs=1e-6)


def test_of_a_step_done_twice_the_greatest_attempt_counts(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    for attempt, seconds in enumerate([1.0, 2.0]):
        clock = FakeClock()
        ledger = Ledger(path, attempt=attempt, clock=clock)
        ledger.started()
        with ledger.span("compute", "forward"):
            clock.tick(seconds)
        ledger.close_step(7)
    assert step_accounts(read_rank(path))[7][("compute", "forward")] == 2.0


def test_a_run_without_ledgers_has_no_accounts(tmp_path: Path) -> None:
    assert where_time_went(create(tmp_path, "r")) == []
    assert read_rank(tmp_path / "absent.jsonl").lines == ()

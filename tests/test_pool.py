"""The pool is itself under test: nothing a round does may reach the next one."""

from __future__ import annotations

import time

import pytest

from tests import pool as pool_module
from tests.pool import RankError, RankPool, RanksHung

CASES = "tests.deliver.wire.cases"


def test_results_come_back_by_rank(ranks: RankPool) -> None:
    assert ranks(4).run(f"{CASES}:add_up", start=1.0) == [[10.0] * 3] * 4
    assert ranks(2).run(f"{CASES}:add_up") == [[1.0] * 3] * 2


def test_processes_are_reused(ranks: RankPool) -> None:
    first = ranks(2).run(f"{CASES}:pid_of")
    if any(w.rounds >= pool_module.ROUNDS_PER_PROCESS for w in ranks._workers):
        first = ranks(2).run(f"{CASES}:pid_of")
    assert ranks(2).run(f"{CASES}:pid_of") == first


def test_an_exception_names_its_rank_and_line_and_poisons_nothing(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"rank 1: ValueError: planted(.|\n)*raise_on") as caught:
        ranks(2).run(f"{CASES}:raise_on", rank=1)
    assert caught.value.rank == 1
    assert ranks(2).run(f"{CASES}:add_up") == [[1.0] * 3] * 2


def test_a_killed_rank_is_the_cause_and_not_its_peers(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"rank 1: process ended with exit code -9"):
        ranks(3).run(f"{CASES}:die_on", rank=1)
    assert ranks(3).run(f"{CASES}:add_up") == [[3.0] * 3] * 3


def test_a_hang_ends_at_its_limit_and_names_last_calls(ranks: RankPool) -> None:
    ranks(2).run(f"{CASES}:add_up")
    begin = time.monotonic()
    with pytest.raises(RanksHung) as caught:
        ranks(2).run(f"{CASES}:stay_away", timeout_s=3, rank=0)
    assert time.monotonic() - begin < 8
    assert "rank 0: after all_reduce #0 on world (0,1)" in str(caught.value)
    assert "rank 1: inside all_reduce #1 on world (0,1)" in str(caught.value)
    assert ranks(2).run(f"{CASES}:add_up") == [[1.0] * 3] * 2


def test_processes_are_replaced_before_they_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "ROUNDS_PER_PROCESS", 2)
    own = RankPool()
    try:
        pids = [own(2).run(f"{CASES}:pid_of") for _ in range(3)]
    finally:
        own.close()
    assert pids[0] == pids[1]
    assert not set(pids[1]) & set(pids[2])

"""Every second of a rank goes to exactly one account, however spans nest and whatever the clock does."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.ledger.lines import read_rank
from paceline.ledger.spans import PHASES, START_UP, TICKS_PER_S, UNATTRIBUTED, CallRow, Ledger


class FakeClock:
    """Time passes only when the test says so."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def tick(self, seconds: float) -> None:
        self.now_s += seconds


def test_entering_pauses_the_outer_account_and_leaving_resumes_it() -> None:
    clock = FakeClock()
    ledger = Ledger(None, clock=clock)
    ledger.started()
    with ledger.span("compute", "forward"):
        clock.tick(1.0)
        with ledger.span("deliver", "all-gather fsdp"):
            clock.tick(0.25)
            with ledger.span("idle", "data"):
                clock.tick(0.5)
        clock.tick(2.0)
    clock.tick(0.125)
    assert ledger.close_step(1) == {
        ("compute", "forward"): 3.0,
        ("deliver", "all-gather fsdp"): 0.25,
        ("idle", "data"): 0.5,
        UNATTRIBUTED: 0.125,
    }


def test_start_up_counts_from_the_process_and_ends_when_the_recipe_says() -> None:
    clock = FakeClock(50.0)
    ledger = Ledger(None, clock=clock, start_s=47.5)
    with ledger.span("recover", "load"):
        clock.tick(1.0)
    clock.tick(0.5)
    ledger.enter("compute", "forward")
    ledger.started()  # inside a span: what resumes below it is nothing
    clock.tick(4.0)
    ledger.leave()
    clock.tick(8.0)
    assert ledger.close_step(1) == {
        START_UP: 3.0,
        ("recover", "load"): 1.0,
        ("compute", "forward"): 4.0,
        UNATTRIBUTED: 8.0,
    }


def test_a_span_open_across_steps_is_divided_between_them() -> None:
    clock = FakeClock()
    ledger = Ledger(None, clock=clock)
    ledger.enter("update", "optimizer")
    clock.tick(1.0)
    first = ledger.close_step(1)
    clock.tick(2.0)
    ledger.leave()
    second = ledger.close_step(2)
    assert (first[("update", "optimizer")], second[("update", "optimizer")]) == (1.0, 2.0)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["enter", "leave", "close", "call", "started"]),
        st.sampled_from([(p, r) for p in PHASES for r in ("a", "b")]),
        st.floats(min_value=0, max_value=3, allow_nan=False),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(moves=MOVES, begin=st.floats(min_value=0, max_value=1e7), before=st.floats(min_value=0, max_value=99))
def test_any_nesting_sums_to_wall_time(
    tmp_path_factory: pytest.TempPathFactory, moves: list, begin: float, before: float
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "rank-00003.jsonl"
    clock = FakeClock(begin)
    ledger = Ledger(path, rank=3, clock=clock, start_s=begin - min(before, begin))
    depth, step, returned = 0, 0, 0.0
    for move, account, seconds in moves:
        clock.tick(seconds)
        if move == "enter":
            ledger.enter(*account)
            depth += 1
        elif move == "leave" and depth:
            ledger.leave()
            depth -= 1
        elif move == "close":
            step += 1
            returned += sum(ledger.close_step(step).values())
        elif move == "call":
            ledger.call(CallRow("dp", "dp:0", "all_reduce", step, 8, clock(), clock(), None, None))
        else:
            ledger.started()
    returned += sum(ledger.close_step(None).values())
    lines = read_rank(path).lines
    start = round((begin - min(before, begin)) * TICKS_PER_S)
    assert lines[0].start == start
    assert lines[-1].end == round(clock() * TICKS_PER_S)
    for line, following in itertools.pairwise(lines):
        assert line.end == following.start
    for line in lines:
        assert sum(line.ticks().values()) == line.end - line.start
        assert line.ticks()[UNATTRIBUTED] >= 0
        for span, after in zip(line.spans, line.spans[1:], strict=False):
            assert span.end <= after.start
    assert math.isclose(returned, (lines[-1].end - start) / TICKS_PER_S, abs_tol=1e-6)


def test_on_a_real_clock_the_lines_leave_no_gap_and_name_their_own_cost(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    ledger = Ledger(path, start_s=time.monotonic() - 0.5)
    for step in range(3):
        with ledger.span("compute", "forward"):
            time.sleep(0.003)
        ledger.close_step(step)
    ledger.close()
    ledger.close()
    lines = read_rank(path).lines
    assert [line.step for line in lines] == [0, 1, 2, None]
    assert all(a.end == b.start for a, b in itertools.pairwise(lines))
    assert lines[0].ticks()[START_UP] >= 0.49 * TICKS_PER_S
    assert lines[1].ticks()[("idle", "ledger")] > 0
    assert 0 < ledger.overhead_s < 0.25


def test_an_enter_leave_pair_costs_microseconds() -> None:
    ledger = Ledger(None)
    best = math.inf
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(1000):
            with ledger.span("compute", "forward"):
                pass
        best = min(best, (time.perf_counter() - begin) / 1000)
        ledger.close_step(None)
    assert best < 3e-6


def test_calls_from_other_threads_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    ledger = Ledger(path)
    go = threading.Event()

    def complete(thread: int) -> None:
        go.wait(5)
        for seq in range(500):
            now = time.monotonic()
            ledger.call(CallRow("fsdp", f"fsdp:{thread}", "all_gather", seq, 64, now, now, now, now))

    threads = [threading.Thread(target=complete, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    go.set()
    step = 0
    while any(thread.is_alive() for thread in threads):
        ledger.close_step(step)
        step += 1
    for thread in threads:
        thread.join()
    ledger.close()
    seen = sorted((c.group, c.seq) for line in read_rank(path).lines for c in line.calls)
    assert seen == sorted((f"fsdp:{n}", seq) for n in range(4) for seq in range(500))


def test_a_torn_line_is_ignored_and_the_next_attempt_starts_on_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    clock = FakeClock()
    first = Ledger(path, attempt=0, clock=clock)
    clock.tick(1)
    first.close_step(1)
    with path.open("ab") as file:
        file.write(b'{"step":2,"start_s":1.0,"spa')
    second = Ledger(path, attempt=1, clock=clock)
    clock.tick(2)
    second.close_step(2)
    assert [(line.attempt, line.step) for line in read_rank(path).lines] == [(0, 1), (1, 2)]


def test_the_file_is_one_header_and_one_compact_line_a_step(tmp_path: Path) -> None:
    path = tmp_path / "rank-00002.jsonl"
    clock = FakeClock(10.0)
    ledger = Ledger(path, rank=2, attempt=4, clock=clock)
    ledger.started()
    with ledger.span("deliver", "all-reduce dp"):
        clock.tick(0.123456789)
    ledger.call(CallRow("dp", "dp:0,1", "all_reduce", 7, 4096, 10.0, 10.1234567, 10.05, 10.1))
    ledger.close_step(1)
    header, row = map(json.loads, path.read_text().splitlines())
    assert (header["schema"], header["rank"], header["attempt"]) == (1, 2, 4)
    assert row["spans"] == [[2, "all-reduce dp", 0.0, 0.1234568]]
    assert row["calls"] == [["dp", "dp:0,1", "all_reduce", 7, 4096, 0.0, 0.1234567, 0.05, 0.1]]


@pytest.mark.parametrize(("phase", "reason"), [("train", "x"), ("compute", ""), ("unattributed", "x")])
def test_an_account_outside_the_phases_is_refused(phase: str, reason: str) -> None:
    with pytest.raises(ValueError):
        Ledger(None).enter(phase, reason)


def test_leaving_more_often_than_entering_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        Ledger(None).leave()

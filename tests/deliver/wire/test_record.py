"""Rows and accounts, with a ledger that only remembers."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from paceline.deliver.wire.record import CallRecorder
from paceline.deliver.wire.slot import Slot, create_slots, read_slots
from paceline.ledger.spans import CallRow, Ledger


class Remembers:
    """A ledger for tests: what was opened and closed, in order, and the rows."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.rows: list[CallRow] = []

    def span(self, phase: str, reason: str, /) -> AbstractContextManager[object]:
        return _Span(self, f"{phase}:{reason}")

    def call(self, row: CallRow, /) -> None:
        self.rows.append(row)


class _Span(AbstractContextManager[object]):
    def __init__(self, books: Remembers, name: str) -> None:
        self.books, self.name = books, name

    def __enter__(self) -> None:
        self.books.events.append(f"+{self.name}")

    def __exit__(self, *_: object) -> None:
        self.books.events.append(f"-{self.name}")


def test_numbers_count_by_group_and_pairs_apart() -> None:
    books = Remembers()
    recorder = CallRecorder(books)
    one, two = recorder.group("0-3", "dp"), recorder.group("0,1", "fsdp")
    for group, pair in ((one, ""), (one, ""), (two, ""), (one, "0>1"), (one, "")):
        group.begin("send" if pair else "all_reduce", 8, pair).close()
    assert [(r.group, r.seq) for r in books.rows] == [
        ("0-3", 0),
        ("0-3", 1),
        ("0,1", 0),
        ("0-3:0>1", 0),
        ("0-3", 2),
    ]


def test_the_account_is_the_axis_and_the_verb_and_follows_a_rename() -> None:
    books = Remembers()
    group = CallRecorder(books).group("0-3")
    with group.begin("all_gather", 8).account:
        pass
    group.axis = "fsdp"
    with group.begin("all_gather", 8).account:
        pass
    assert books.events == [
        "+deliver:world/all_gather",
        "-deliver:world/all_gather",
        "+deliver:fsdp/all_gather",
        "-deliver:fsdp/all_gather",
    ]


def test_a_ledger_set_later_is_used() -> None:
    books = Remembers()
    recorder = CallRecorder(None)
    group = recorder.group("0-3")
    with group.begin("barrier", 0).account:
        pass
    recorder.ledger = books
    with group.begin("barrier", 0).account:
        pass
    assert books.events == ["+deliver:world/barrier", "-deliver:world/barrier"]


def test_a_row_is_written_once_whoever_ends_it() -> None:
    books = Remembers()
    call = CallRecorder(books).group("0-3").begin("all_reduce", 8)
    threads = [threading.Thread(target=call.close) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(books.rows) == 1


def test_completion_is_the_first_one_told() -> None:
    books = Remembers()
    call = CallRecorder(books).group("0-3").begin("all_reduce", 8)
    call.complete(123.0)
    call.complete(456.0)
    call.close()
    assert books.rows[0].leave_s == 123.0
    assert books.rows[0].wait_start_s is None


def test_the_slot_follows_the_call(tmp_path: Path) -> None:
    create_slots(tmp_path / "slots", 1)
    recorder = CallRecorder(None, Slot(tmp_path / "slots", 0))
    recorder.at_step(3)
    call = recorder.group("0-3", "dp").begin("all_reduce", 8)
    assert str(read_slots(tmp_path / "slots", 1)[0]) == "rank 0: inside all_reduce #0 on dp (0-3), step 3"
    call.close()
    assert not read_slots(tmp_path / "slots", 1)[0].inside


@pytest.mark.parametrize("with_slot", [False, True])
def test_recording_costs_less_than_ten_microseconds_a_call(tmp_path: Path, with_slot: bool) -> None:
    """CPU time of this thread, best of many short batches: what the code costs, whatever else runs here."""
    create_slots(tmp_path / "slots", 1)
    ledger = Ledger(None)
    group = CallRecorder(ledger, Slot(tmp_path / "slots", 0) if with_slot else None).group("0-3", "dp")
    best = float("inf")
    for _ in range(60):
        begin = time.thread_time()
        for _ in range(100):
            call = group.begin("all_reduce", 8)
            with call.account:
                pass
            with call.account:
                call.wait_s = (1.0, 2.0)
                call.complete(2.0)
                call.close()
        best = min(best, (time.thread_time() - begin) / 100)
        ledger.close_step(None)
    assert best < 10e-6

"""The record of the last call: what is written is read, and half of it never is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from paceline.deliver.wire.slot import SLOT_BYTES, LastCall, Slot, create_slots, parse, read_slots
from paceline.launch.forkserver import start
from tests.pool import warm_up


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_slots(tmp_path / "slots", 3)
    return tmp_path / "slots"


def test_a_rank_reads_as_inside_until_its_call_is_complete(path: Path) -> None:
    slot = Slot(path, 1)
    slot.at_step(7)
    ticket = slot.call("all_reduce", "fsdp", "0-6:2", 12)
    inside = read_slots(path, 3)[1]
    assert inside[:7] == (1, 7, 12, "all_reduce", "fsdp", "0-6:2", True)
    assert abs(inside.time_s - time.monotonic()) < 1
    assert str(inside) == "rank 1: inside all_reduce #12 on fsdp (0-6:2), step 7"
    slot.left(ticket)
    after = read_slots(path, 3)[1]
    assert (after.inside, after.version) == (False, inside.version)


def test_slots_do_not_touch_each_other(path: Path) -> None:
    for rank in range(3):
        Slot(path, rank).call("barrier", "world", "0-2", rank)
    assert [(c.rank, c.seq) for c in read_slots(path, 3)] == [(0, 0), (1, 1), (2, 2)]


def test_an_earlier_completion_says_nothing_of_a_later_call(path: Path) -> None:
    slot = Slot(path, 0)
    first = slot.call("all_gather", "fsdp", "0-2", 0)
    second = slot.call("all_gather", "fsdp", "0-2", 1)
    slot.left(first)
    assert read_slots(path, 3)[0].inside
    slot.left(second)
    slot.left(first)
    assert not read_slots(path, 3)[0].inside


def test_a_new_step_leaves_an_open_call_open(path: Path) -> None:
    slot = Slot(path, 0)
    slot.call("all_gather", "fsdp", "0-2", 0)
    slot.at_step(1)
    assert read_slots(path, 3)[0].inside


def test_two_hundred_and_fifty_six_calls_do_not_wrap_into_complete(path: Path) -> None:
    slot = Slot(path, 0)
    for seq in range(600):
        ticket = slot.call("all_reduce", "dp", "0-2", seq)
        assert read_slots(path, 3)[0].inside
        slot.left(ticket)
        assert not read_slots(path, 3)[0].inside


def test_nothing_written_and_no_file(path: Path) -> None:
    assert read_slots(path, 3) == [LastCall(0), LastCall(1), LastCall(2)]
    assert read_slots(path.with_name("absent"), 1) == [LastCall(0)]
    assert str(LastCall(2)) == "rank 2: no collective yet"


@pytest.mark.parametrize("position", [0, 8, 30, 60, 100])
def test_a_changed_byte_is_torn(path: Path, position: int) -> None:
    Slot(path, 0).call("all_reduce", "dp", "0-2", 3)
    raw = bytearray(path.read_bytes()[:SLOT_BYTES])
    assert not parse(bytes(raw), 0).torn
    raw[position] ^= 0x40
    assert parse(bytes(raw), 0).torn


def test_a_short_file_is_torn_and_a_missing_slot_is_refused(path: Path) -> None:
    assert parse(b"\0" * 10, 0).torn
    with pytest.raises(ValueError, match="no slot for rank 3"):
        Slot(path, 3)


def _write_for(path: Path, seconds: float) -> None:
    slot, end, seq = Slot(path, 0), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        slot.step = seq
        slot.left(slot.call(f"op{seq % 7}", f"axis{seq % 7}", f"group{seq % 7}", seq))
        seq += 1


def test_a_reader_beside_a_fast_writer_never_sees_a_mixture(path: Path) -> None:
    warm_up()
    writer = start(_write_for, (path, 1.0), "writer")
    seen = 0
    while writer.is_alive():
        call = read_slots(path, 1)[0]
        assert not call.torn
        if call.op:
            seen += 1
            number = call.seq % 7
            assert (call.op, call.axis, call.group) == (f"op{number}", f"axis{number}", f"group{number}")
            assert call.step == call.seq
    writer.join(10)
    assert seen > 100

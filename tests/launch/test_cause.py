"""Which of several ends is the cause, and how each is told."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from paceline.deliver.wire.slot import LastCall
from paceline.launch.cause import Cause, first_cause, from_death, from_early_end, from_exception, from_hang
from paceline.ledger.outcome import Exit, Failed, PacelineError, Refused


def _failed(code: Exit) -> Failed:
    return Failed("x", exit_code=code)


@pytest.mark.parametrize(
    ("causes", "rank"),
    [
        ([Cause(1, _failed(Exit.RANK_DIED)), Cause(2, _failed(Exit.RANK_DIED), died=True)], 2),
        ([Cause(1, _failed(Exit.RANK_DIED)), Cause(2, _failed(Exit.FAULT))], 2),
        ([Cause(1, _failed(Exit.HUNG)), Cause(0, _failed(Exit.DATA))], 0),
        ([Cause(3, _failed(Exit.FAULT)), Cause(1, _failed(Exit.FAULT))], 3),
        ([Cause(3, _failed(Exit.PEERS)), Cause(0, _failed(Exit.PEERS))], 0),
    ],
)
def test_the_cause_is_what_tells_most_and_then_what_came_first(causes: list[Cause], rank: int) -> None:
    assert first_cause(causes).rank == rank


def _raised(error: BaseException) -> PacelineError:
    try:
        raise error
    except BaseException as caught:
        return from_exception(caught, 2, "n1", 4)


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


def test_errors_of_every_kind_become_ours() -> None:
    ours = Refused("mine", exit_code=Exit.DATA)
    assert _raised(ours) is ours
    plain = _raised(KeyError("k"))
    assert (plain.exit_code, plain.message) == (1, "rank 2 on n1 raised KeyError: 'k'")
    assert plain.where.startswith("test_cause.py:")
    for error in (
        MemoryError(),
        OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ):
        told = _raised(error)
        assert (told.exit_code, told.use) == (23, "--layout fsdp=4,mbs=1")
    full = _raised(OSError(28, "No space left on device"))
    assert (full.exit_code, full.message) == (55, "rank 2 on n1 cannot write: No space left on device")
    assert _raised(OSError(2, "No such file")).exit_code == 1
    lost = _raised(RuntimeError("Connection closed by peer [127.0.0.1]:1"))
    assert lost.exit_code == 58


def test_the_line_is_the_users_and_not_the_librarys() -> None:
    import json

    with pytest.raises(ValueError) as caught:
        json.loads("{")
    assert from_exception(caught.value, 0, "h", 1).where.startswith("test_cause.py:")


def test_an_abort_by_gloo_is_read_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_text(
        "hello\n  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 4096 vs 4.\n"
    )
    told = from_death(1, "h", -signal.SIGABRT, log, "all_reduce #3 on dp (0-3)")
    assert (told.exit_code, told.message) == (32, "ranks disagree in all_reduce #3 on dp (0-3)")
    log.write_text("hello\n")
    assert from_death(1, "h", -signal.SIGABRT, log).exit_code == 58
    assert from_death(1, "h", -signal.SIGABRT, tmp_path / "absent").exit_code == 58
    assert "signal 77" in from_death(1, "h", -77).message


def test_a_hang_is_told_by_who_is_not_there() -> None:
    inside = [LastCall(r, 5, 12, "all_gather", "fsdp", "0-3", True) for r in (0, 1, 3)]
    late = LastCall(2, 5, 11, "all_reduce", "dp", "0-6:2", False)
    told = from_hang([*inside[:2], late, inside[2]], 300.2, 300.0)
    assert told.message == "collective hung: all_gather #12 on fsdp (0-3), step 5; waiting for rank 2"
    assert told.seen.splitlines()[0] == "rank 2: after all_reduce #11 on dp (0-6:2), step 5"
    assert "within 300 s" in told.rule


def test_ranks_in_two_different_collectives_and_in_none() -> None:
    crossed = from_hang(
        [
            LastCall(0, 1, 4, "all_reduce", "dp", "0-2", True),
            LastCall(1, 1, 4, "all_gather", "dp", "0-2", True),
            LastCall(2, 1, 4, "all_reduce", "dp", "0-2", True),
        ],
        10,
        5,
    )
    assert crossed.message.endswith("waiting for rank 1")
    nobody = from_hang([LastCall(0), LastCall(1)], 10, 5)
    assert nobody.message == "every rank stands still: no collective is open"


def test_a_rank_that_has_ended_while_others_wait_made_fewer_calls() -> None:
    lost = _failed(Exit.RANK_DIED)
    ended = LastCall(1, 5, 8, "all_reduce", "dp", "0-2", False)
    waiting = [LastCall(r, 5, 9, "all_reduce", "dp", "0-2", True) for r in (0, 2)]
    told = from_early_end([1], [waiting[0], ended, waiting[1]], lost)
    assert told.exit_code == Exit.DISAGREE
    assert told.message == "rank 1 has ended, and others wait for it in all_reduce #9 on dp (0-2), step 5"
    assert told.seen.splitlines()[0].startswith("rank 1: after all_reduce #8")
    assert from_early_end([1], [ended], lost) is lost, "nobody waits: the slots know no better"

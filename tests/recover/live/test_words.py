"""The rows by which ranks enter a change of the weights together, and what is read of them after a death."""

from __future__ import annotations

import threading

import pytest

from paceline.recover.buffer import Buffer
from paceline.recover.live.arena import Arena, Entry
from paceline.recover.live.survive import in_update, survived
from paceline.recover.live.words import Finished, Words
from paceline.recover.slices import Box, whole


def finished(step: int) -> Finished:
    return Finished(
        step,
        8.0 * step,
        100.0 * step,
        8.0 * step,
        100.0,
        400.0,
        8.0,
        4.5,
        1.25,
        1e-3,
        0.5,
        (*[0.5] * 15, float(step)),
    )


def row_of(low: int, high: int, width: int = 3) -> Box:
    return Box((low, 0), (0, 0), (high - low, width))


def arenas(*rows: tuple[int, int]) -> list[Arena]:
    """One memory a rank: these rows of a tensor of four rows, and a number that all have."""
    found = []
    for low, high in rows:
        arena = Arena(Buffer())
        arena.lay_out(
            {
                "model/w": Entry("F32", (4, 3), (row_of(low, high),), (high - low, 3), 12 * (high - low)),
                "optimizer/w/step": Entry("F32", (), tuple(whole(())), (), 4),
            }
        )
        found.append(arena)
    return found


def words_at(*rows: tuple[int, int]) -> Words:
    """By rank (ready, done)."""
    words = Words.make(len(rows))
    for rank, (ready, done) in enumerate(rows):
        words.begin(rank, 0)
        for step in range(1, done + 1):
            words.leave(rank, finished(step))
        words.ready[rank] = ready
    return words


REPLICAS = ((0, 4), (0, 4), (0, 4))
SHARDS = ((0, 2), (2, 4))
HYBRID = ((0, 2), (2, 4), (0, 2), (2, 4))


@pytest.mark.parametrize(
    ("rows", "at", "step", "clean"),
    [
        # nobody was changing weights
        (REPLICAS, [(5, 5), (5, 5), (5, 5)], 5, (0, 1, 2)),
        (SHARDS, [(5, 5), (5, 5)], 5, (0, 1)),
        # one rank had its gradients, another had not: nobody had begun
        (SHARDS, [(6, 5), (5, 5)], 5, (0, 1)),
        (REPLICAS, [(6, 5), (6, 5), (5, 5)], 5, (0, 1, 2)),
        # all had begun, and one died before it was done: torn, the others have finished
        (REPLICAS, [(6, 6), (6, 5), (6, 6)], 6, (0, 2)),
        (HYBRID, [(6, 6), (6, 6), (6, 5), (6, 6)], 6, (0, 1, 3)),
        # two died, of two shards: each has its replica
        (HYBRID, [(6, 5), (6, 6), (6, 6), (6, 5)], 6, (1, 2)),
        # nobody else holds what the dead one was changing
        (SHARDS, [(6, 6), (6, 5)], None, ()),
        (HYBRID, [(6, 5), (6, 6), (6, 5), (6, 6)], None, ()),
        # all died while they were changing
        (REPLICAS, [(6, 5), (6, 5), (6, 5)], None, ()),
        # one had not taken up the memory yet when another died
        (REPLICAS, [(5, 5), (6, 4), (5, 5)], 5, (0, 2)),
        # nobody holds anything
        (REPLICAS, [(-1, -1), (-1, -1), (-1, -1)], None, ()),
        (REPLICAS, [(3, 3), (-1, -1), (3, 3)], 3, (0, 2)),
        (SHARDS, [(3, 3), (-1, -1)], None, ()),
    ],
)
def test_which_step_all_shards_can_have(
    rows: tuple[tuple[int, int], ...], at: list[tuple[int, int]], step: int | None, clean: tuple[int, ...]
) -> None:
    found = survived(words_at(*at), arenas(*rows))
    assert (None if found is None else found.step) == step
    if found is not None:
        assert found.clean == clean
        assert [one.step for one in found.finished][-1] == step
        assert found.finished[-1] == finished(found.step)


def test_ranks_that_hold_nothing_say_nothing() -> None:
    assert survived(words_at((0, 0), (0, 0)), [Arena(Buffer()), Arena(Buffer())]) is None


@pytest.mark.parametrize(
    ("at", "step"),
    [
        ([(5, 5), (5, 5)], None),
        ([(6, 5), (5, 5)], None),
        ([(6, 5), (6, 5)], 6),
        ([(6, 6), (6, 5)], 6),
        ([(6, 6), (6, 6)], None),
    ],
)
def test_whether_weights_are_changing(at: list[tuple[int, int]], step: int | None) -> None:
    assert in_update(words_at(*at)) == step


def test_the_last_two_steps_are_whole_whichever_is_being_written() -> None:
    words = words_at((7, 7), (7, 7))
    assert words.finished(0) == [finished(6), finished(7)]
    words._rows[0, 2] = -1.0  # step 8 comes where 6 was, and is half written
    assert words.finished(0) == [finished(7)]


def test_nobody_enters_before_all_are_ready() -> None:
    words, entered = words_at((3, 3), (3, 3)), threading.Event()

    def other() -> None:
        words.enter(1, 4, limit_s=20)
        entered.set()

    thread = threading.Thread(target=other)
    thread.start()
    assert not entered.wait(0.2)
    words.enter(0, 4, limit_s=20)
    assert entered.wait(5)
    thread.join()


def test_who_does_not_come_is_named() -> None:
    words = words_at((3, 3), (3, 3), (3, 3))
    words.ready[0] = 4
    with pytest.raises(TimeoutError, match=r"ranks \[1\] had no gradients of step 4"):
        words.enter(2, 4, limit_s=0.05)


def test_memory_is_seen_by_whoever_opens_it_and_leaves_with_the_last() -> None:
    words = words_at((5, 5))
    from paceline.recover.live.arena import open_shared, path_of

    path = path_of(words.buffer)
    other = Words(open_shared(path), 1)
    words.leave(0, finished(6))
    assert other.finished(0)[-1].step == 6
    words.buffer.close()
    other.buffer.close()
    with pytest.raises(OSError):
        open_shared(path)

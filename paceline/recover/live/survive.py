"""After a death: which step every shard can be brought to, and from whom. Read by the launcher, without torch.

The ranks have ended or stand still. A rank's memory is whole at a step when it was not changing its weights: it had
finished the step that it was ready for, or not all ranks were ready, so that nobody had begun (``words.py``). The
others are torn; what they held is taken from whoever holds the same elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.recover.live.arena import Arena, Entry
from paceline.recover.live.words import Finished, Words


@dataclass(frozen=True)
class Survived:
    """What is there after ``step`` finished steps: the ranks whose memory is whole, and their last two steps."""

    step: int
    clean: tuple[int, ...]
    finished: tuple[Finished, ...]


def in_update(words: Words) -> int | None:
    """The step whose weights may be changing somewhere, or None: it is finished by whoever lives, without messages."""
    newest = int(words.ready.max())
    all_ready = newest >= 0 and int(words.ready.min()) == newest
    return newest if all_ready and int(words.done.min()) < newest else None


def survived(words: Words, arenas: Sequence[Arena]) -> Survived | None:
    """The newest step that all shards can have; None where a shard of it is whole nowhere."""
    ready, done = words.ready.tolist(), words.done.tolist()
    begun = min(ready) == max(
        ready
    )  # all were ready for the same step: whoever has not finished it may be torn
    whole = {
        rank: int(done[rank])
        for rank in range(len(arenas))
        if done[rank] >= 0 and (ready[rank] == done[rank] or (not begun and ready[rank] == done[rank] + 1))
    }
    for step in sorted(set(whole.values()), reverse=True):
        clean = tuple(rank for rank, at in whole.items() if at == step)
        if _covered([arenas[rank].table for rank in clean], [arena.table for arena in arenas]):
            return Survived(step, clean, _finished(words, clean, step))
    return None


def _covered(clean: Sequence[dict[str, Entry]], tables: Iterable[dict[str, Entry]]) -> bool:
    """Whether the clean tables hold every element of every tensor that anybody has. Blocks are equal or disjoint."""
    every = {name: entry.shape for table in tables for name, entry in table.items()}
    for name, shape in every.items():
        blocks = {(b.starts, b.shape): b.numel for t in clean if name in t for b in t[name].boxes}
        if sum(blocks.values()) != math.prod(shape):
            return False
    return bool(every)


def _finished(words: Words, clean: Sequence[int], step: int) -> tuple[Finished, ...]:
    found = {one.step: one for rank in clean for one in words.finished(rank) if one.step <= step}
    return tuple(found[at] for at in sorted(found))

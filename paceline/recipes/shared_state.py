"""A rank's state in memory that outlives it: moved there at the start, found there again after a death.

Only where the state of the run is in the host's own memory: what a CUDA device holds goes with its process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.deliver.mesh import Mesh
from paceline.deliver.wire.record import CallRecorder
from paceline.ledger.outcome import Exit, Failed
from paceline.recipes.assemble import Assembly
from paceline.recipes.feed import Feed
from paceline.recover.agree import Ranks
from paceline.recover.live.alive import MEMORY, Alive
from paceline.recover.live.arena import Arena, open_shared
from paceline.recover.live.commit import SharedCommit
from paceline.recover.live.fill import fill
from paceline.recover.live.move import move
from paceline.recover.live.words import Words


class Memory:
    """One rank's part of it."""

    def __init__(self, alive: Alive, built: Assembly, mesh: Mesh) -> None:
        self._alive, self._built, self._mesh = alive, built, mesh
        self._words = Words(open_shared(alive.words), mesh.world_size)
        self._arena = Arena(open_shared(alive.arenas[mesh.rank]))

    def enter(self, *, keep: bool) -> bool:
        """Move the state there. False where one rank has no memory for it: then nobody relies on it.

        Args:
            keep: whether the values that the tensors have count.
        """
        built = self._built
        state = built.state()
        built.load(state)  # the optimizer has its tensors from here on
        lacking = 0
        try:
            move(state, built.models, built.optimizer, self._arena, keep=keep)
        except OSError:
            lacking = 1
        return Ranks(self._mesh.everyone, built.device.torch).total(lacking) == 0

    def take_up(self) -> int:
        """Go on from what is there; the bytes that had to be copied for it.

        Raises:
            Failed: some rank has no room for it (58): the next attempt goes on from a checkpoint.
        """
        mine = self._alive.arenas[self._mesh.rank]
        whole = mine in self._alive.sources
        if not self.enter(keep=False):
            raise Failed(
                "no room for the state of the ranks that go on",
                exit_code=Exit.RANK_DIED,
                key=MEMORY,
                seen="shared memory for a rank's parameters and optimizer state could not be had",
                rule="who goes on from memory holds what the ranks before it held",
                use="free some memory; the last checkpoint is used instead",
            )
        sources = [Arena(open_shared(path)) for path in self._alive.sources if path != mine]
        copied = 0 if whole else fill(self._arena, sources)
        for source in sources:
            source.buffer.close()
        self._built.follow()
        return copied

    def commit(
        self, recorder: CallRecorder, limit_s: float, scalars: Mapping[str, Any], feed: Feed
    ) -> SharedCommit:
        """From here on the memory holds the state after ``scalars['step']`` steps."""
        step = int(scalars.get("step", 0))
        self._words.begin(self._mesh.rank, step)

        def position_of(after: int) -> int:
            return feed.plan.position_of(after)  # asked late: the plan of a resumed run is another one

        group = recorder.group("all ranks", timeout_s=limit_s)
        tokens, samples = float(scalars.get("tokens", 0)), float(scalars.get("samples", 0))
        return SharedCommit(self._words, self._mesh.rank, group, limit_s, position_of, step, tokens, samples)

"""What the ranks of the tests of background saves run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from paceline.deliver.wire.world import World
from paceline.ledger.outcome import PacelineError
from paceline.recover.agree import Ranks
from paceline.recover.background import Background
from tests.recover.cases import IDENTITY, Run, Values


def saver(run: Run, folder: Path, **options: Any) -> Background:
    return Background(folder, Ranks(run.mesh.everyone), layout=run.layout, identity=IDENTITY, **options)


def train_while_saving(world: World | None, layout: str, folder: Path) -> tuple[Values, list[int]]:
    """The state at step 2 by torch's own gathering; training goes on while it is written."""
    run = Run(world, layout)
    run.train(0, 2)
    kept, steps = run.gather(), []
    background = saver(run, folder)
    background.begin(run.state(step=2, position=16, seed=7))
    for step in range(2, 6):
        run.train(step, step + 1)
        steps += [saved.step for saved in background.poll()]
    background.begin(run.state(step=6, position=48, seed=7))
    background.wait()
    steps += [saved.step for saved in background.poll()]
    background.close()
    return kept, steps


def kill_a_writer(world: World, layout: str, folder: Path, rank: int) -> dict[str, Any]:
    """One rank's writer is killed in a save; the error that this rank's next call raised, {} without one."""
    run = Run(world, layout)
    background = saver(run, folder)
    background.begin(run.state(step=1))
    background.wait()
    background.poll()
    error: dict[str, Any] = {}
    if world.rank == rank:
        assert background._process is not None
        os.kill(background._process.pid, signal.SIGSTOP)
    background.begin(run.state(step=2))
    try:
        if world.rank == rank:
            assert background._process is not None
            os.kill(background._process.pid, signal.SIGKILL)
            background.wait()
    except PacelineError as failure:
        error = failure.to_dict()
    background.close()  # as a rank does when another has failed
    return error


def without_memory(world: World, layout: str, folder: Path, rank: int) -> tuple[list[int], list[str]]:
    """One rank has no shared memory: (steps saved, what was there right after each call)."""
    from paceline.recover.buffer import Buffer

    run = Run(world, layout)
    plain = Buffer.__init__
    if world.rank == rank:
        # The writer is a process of its own: a descriptor that cannot grow is what it sees of a full system.
        read_only = os.open(folder, os.O_RDONLY)
        Buffer.__init__ = lambda self, fd=None: self.__dict__.update(fd=read_only, _map=None, _given=0)  # type: ignore[assignment,method-assign]
    background = saver(run, folder)
    Buffer.__init__ = plain  # type: ignore[method-assign]
    steps, there = [], []
    for step in (1, 2):
        background.begin(run.state(step=step))
        steps += [saved.step for saved in background.poll()]
        there.append((folder / "latest").read_text().split()[0])
    background.close()
    return steps, there

"""A run's checkpoints: what is saved at a step, and how a run goes on from one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import floor
from typing import Any

import torch.distributed as dist

from paceline.deliver.device import Device
from paceline.job.interval import Interval
from paceline.ledger.outcome import Exit, Refused
from paceline.recipes.assemble import Assembly
from paceline.recipes.brief import Brief
from paceline.recipes.feed import Feed
from paceline.recover.agree import Ranks
from paceline.recover.background import Background
from paceline.recover.load import read
from paceline.recover.write import Saved
from paceline.update.schedule import Schedule


@dataclass
class Keeper:
    """Saves one assembly. ``world`` is the group of all ranks, None on one; ``start`` the step resumed from.

    ``told`` gets each save that has ended; ``alive`` is called while one is waited for; ``remembered`` has what the
    rules that watch the run remember, by the names of a checkpoint's scalars.
    """

    brief: Brief
    built: Assembly
    schedule: Schedule
    feed: Feed
    keep_every: int | None
    world: dist.ProcessGroup | None
    device: Device
    start: int = 0
    told: Callable[[Saved], None] = lambda saved: None
    alive: Callable[[], None] = lambda: None
    remembered: Callable[[], dict[str, Any]] = dict
    last: Saved | None = field(default=None)
    _background: Background | None = field(default=None)

    def __post_init__(self) -> None:
        if self.start <= self.schedule.steps:
            return
        raise Refused(
            "the checkpoint is past the end of the job",
            exit_code=Exit.MISMATCH,
            key="train.steps",
            seen=f"checkpoint of step {self.start}, the job ends at {self.schedule.steps}",
            rule="a resumed run goes on from its checkpoint",
            use=f"--set train.steps={self.start + 1} or more",
            where=str(self.brief.resume),
        )

    def begin(self, step: int, tokens: float, samples: float) -> float:
        """Take what is to be saved after ``step`` finished steps; seconds that training waited for it.

        Raises:
            Failed: the save before it failed (55).
        """
        scalars: dict[str, Any] = {
            "step": step,
            "position": self.feed.plan.position_of(step),
            "tokens": tokens,
            "samples": samples,
            "steps": self.schedule.steps,
            "seed": self.brief.job.train.seed,
            "precision": self.brief.precision,
            **self.remembered(),
        }
        began = time.monotonic()
        self._saver.begin(self.built.state(scalars), self.alive)
        self.look()
        return time.monotonic() - began

    def look(self) -> None:
        """Tell of a save that has ended since the last look. Raises Failed (55) where it failed."""
        for saved in () if self._background is None else self._background.poll():
            self.last = saved
            self.told(saved)

    def finish(self) -> float:
        """Until everything begun is named and verified; seconds that took. Raises Failed (55)."""
        began = time.monotonic()
        if self._background is not None:
            self._background.wait(self.alive)
            self.look()
        return time.monotonic() - began

    def prepare(self) -> None:
        """Start the process that writes, ahead of the first save."""
        self._saver.start(self.built.state({}))

    def close(self) -> None:
        """End the process that writes; what it has not finished is given up."""
        if self._background is not None:
            self._background.close()

    @property
    def _saver(self) -> Background:
        if self._background is None:
            self._background = Background(
                self.brief.folder.checkpoints,
                Ranks(self.world, self.device.torch),
                layout=str(self.brief.layout),
                identity=self.brief.identity,
                keep=self.brief.job.checkpoint.keep,
                keep_every=self.keep_every,
                attempt=self.brief.attempt,
            )
        return self._background


def resume(brief: Brief, built: Assembly, world: dist.ProcessGroup | None, device: Device) -> dict[str, Any]:
    """Fill model and optimizer from the brief's checkpoint; its scalars, or {} for a fresh start.

    Raises:
        Refused: 54 when names, shapes or dtypes differ. Failed: 53 when a byte is not what was written.
    """
    if brief.resume is None:
        return {}
    state = built.state()
    read(brief.resume, state, world=world, device=device.torch)
    built.load(state)
    return dict(state.scalars)


def steps_of(keep_every: Interval, feed: Feed) -> int | None:
    """``checkpoint.keep_every`` as steps: those at whole multiples stay for good; None = never."""
    by_kind = {"steps": 1.0, "epochs": feed.steps_per_epoch, "fraction": float(feed.steps)}
    if keep_every.kind not in by_kind:
        return None
    return max(1, floor(keep_every.value * by_kind[keep_every.kind]))

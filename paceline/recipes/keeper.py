"""A run's checkpoints: what is saved at a step, and how a run goes on from one."""

from __future__ import annotations

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
from paceline.recover.load import read
from paceline.recover.save import Saved, save
from paceline.update.schedule import Schedule


@dataclass
class Keeper:
    """Saves one assembly. ``world`` is the group of all ranks, None on one; ``start`` the step resumed from."""

    brief: Brief
    built: Assembly
    schedule: Schedule
    feed: Feed
    keep_every: int | None
    world: dist.ProcessGroup | None
    device: Device
    start: int = 0
    last: Saved | None = field(default=None)

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

    def save(self, step: int, tokens: float, samples: float) -> Saved:
        """Save after ``step`` finished steps; returns when ``latest`` names it, verified."""
        scalars: dict[str, Any] = {
            "step": step,
            "position": self.feed.plan.position_of(step),
            "tokens": tokens,
            "samples": samples,
            "steps": self.schedule.steps,
            "seed": self.brief.job.train.seed,
            "precision": self.brief.precision,
        }
        self.last = save(
            self.brief.folder.checkpoints,
            self.built.state(scalars),
            layout=str(self.brief.layout),
            identity=self.brief.identity,
            world=self.world,
            keep=self.brief.job.checkpoint.keep,
            keep_every=self.keep_every,
            attempt=self.brief.attempt,
            device=self.device.torch,
        )
        return self.last


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

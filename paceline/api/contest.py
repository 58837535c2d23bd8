"""``plan --measure K``: runs the real job for some steps on the best K layouts. Nothing of it is kept.

Each layout is started twice, in turns with the others, so that a machine that becomes slower meanwhile is so for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from paceline.api.attempts import ENTRY, INNER_SHARE
from paceline.api.calibrating import parts_of_steps
from paceline.api.ground import Ground, settle
from paceline.launch.local import run_ranks
from paceline.launch.signals import Stopper
from paceline.ledger.accounts import read_ranks, split_waits
from paceline.ledger.folder import create
from paceline.ledger.outcome import Exit, PacelineError, Refused
from paceline.plan.contest import Timing, contestants, decided
from paceline.plan.model import flops_per_token
from paceline.recipes.brief import Brief

if TYPE_CHECKING:
    from paceline.job import Loaded
    from paceline.plan.answer import Plan
    from paceline.plan.layout import Layout

WARM = 2  # steps of each start that do not count: allocators, compilers, caches
LEAST, MOST = 4, 16  # steps of each start that do
ENOUGH_S = 3.0
ROUNDS = 2
LONG_S = 120.0  # of three layouts: after a round that took this long a second one is not worth its time

Say = Callable[[str, str], None]


@dataclass
class _Lane:
    """One layout: what was heard of its steps."""

    layout: Layout
    steps_s: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    memory_gib: float = 0.0
    failed: str = ""
    code: int = 0
    fresh: list[float] = field(default_factory=list)

    def hear(self, row: dict[str, Any]) -> None:
        """A row of a rank; the first steps of a start are left out."""
        if row.get("kind") == "train":
            self.fresh.append(float(row["step_time_s"]))
            self.memory_gib = max(self.memory_gib, float(row.get("memory_gib") or 0.0))

    @property
    def enough(self) -> bool:
        """Whether this start has given what it should."""
        counted = self.fresh[WARM:]
        return len(counted) >= MOST or (len(counted) >= LEAST and sum(counted) >= ENOUGH_S)

    def take(self) -> None:
        """The start is over; of a job of very few steps the last ones count."""
        self.steps_s += self.fresh[WARM:] or self.fresh[-1:]
        self.fresh = []

    def timing(self) -> Timing:
        """As the planner takes it."""
        names = {name for one in self.parts for name in one}
        parts = {name: mean(one.get(name, 0.0) for one in self.parts) for name in names}
        return Timing(tuple(self.steps_s), parts, self.memory_gib, self.failed, self.code)


def measure_best(loaded: Loaded, layout: str, most: int, say: Say) -> Plan:
    """Plan a job for this machine, run the best ``most`` layouts for some steps, and let the measurements choose.

    Args:
        loaded: the job with the places its values come from.
        layout: ``auto`` or what is asked for; a closed one is run alone.
        most: how many layouts are run, from 1.
        say: headings for the console.

    Returns:
        The plan: each candidate that ran has measured ``step_s`` and its prediction beside it.

    Raises:
        Refused: whatever ``train`` would refuse; 11, 12 as :func:`paceline.plan.contest.decided`.
        SystemExit: 130 or 143, the user stopped it.
    """
    ground = settle(loaded.job, layout, say, lambda row: None, loaded.where, top=most)
    layouts = [one.layout for one in contestants(ground.plan, most)]
    return decided(ground.plan, time_layouts(ground, layouts, say))


def time_layouts(ground: Ground, layouts: Sequence[Layout], say: Say) -> dict[Layout, Timing]:
    """Each of the closed ``layouts`` run for some steps of the settled job, in turns.

    Raises:
        SystemExit: 130 or 143, the user stopped it. Refused: 2, the job has no step.
    """
    lanes = [_Lane(one) for one in layouts]
    began = time.monotonic()
    with TemporaryDirectory(prefix="paceline-measure-") as scratch, Stopper() as stopper:
        for turn in range(ROUNDS):
            if turn and time.monotonic() - began > LONG_S * len(lanes) / 3:
                break
            for lane in lanes:
                if not lane.failed:
                    _run(lane, ground, Path(scratch), stopper)
                    say("measured", _told(lane))
    return {lane.layout: lane.timing() for lane in lanes}


def _told(lane: _Lane) -> str:
    if lane.failed:
        return f"{lane.layout}: {lane.failed}"
    return f"{lane.layout}: {lane.timing().middle_s:.3g} s a step over {len(lane.steps_s)} steps"


def _run(lane: _Lane, ground: Ground, scratch: Path, stopper: Stopper) -> None:
    """One start. What a rank raises is the layout's result; what the user stops ends everything."""
    brief = _brief(ground, lane.layout, scratch)
    hang_s = ground.job.restart.hang_timeout
    try:
        run_ranks(
            ENTRY,
            brief.payload(),
            world_size=lane.layout.world_size,
            logs=brief.folder.logs,
            threads_per_rank=ground.threads_of(lane.layout.world_size),
            timeout_s=hang_s * INNER_SHARE,
            hang_timeout_s=hang_s,
            on_message=lambda rank, row: lane.hear(row),
            stop=lambda: stopper() or ("on_row" if lane.enough else None),
        )
    except PacelineError as error:
        _leave(stopper)
        lane.code = int(error.exit_code)
        lane.failed = f"failed: {error.message} (exit {int(error.exit_code)})"
    _leave(stopper)
    lane.take()
    lane.parts.append(
        parts_of_steps(split_waits(read_ranks(brief.folder)).ranks, pipeline=lane.layout.pp > 1)[0]
    )
    if not lane.steps_s and not lane.failed:
        raise Refused(
            "the job has no step to measure",
            exit_code=Exit.USAGE,
            key="train.steps",
            seen=f"{ground.steps} steps",
            rule="a layout is timed on steps of the job",
            use="--set train.steps=20",
        )


def _leave(stopper: Stopper) -> None:
    reason = stopper()
    if reason is not None:
        raise SystemExit(143 if reason == "SIGTERM" else 130)


def _brief(ground: Ground, layout: Layout, scratch: Path) -> Brief:
    job, prepared = ground.job, ground.prepared
    return Brief(
        job=job,
        layout=layout,
        folder=create(scratch, "timed"),
        prepared=prepared.folder,
        precision=job.train.precision,
        started_unix_s=time.time(),
        flops_per_token=flops_per_token(job.model.widths(prepared.vocab), job.data.sequence_length),
        identity={"run_id": "timed", **{f"{k}_hash": v for k, v in ground.hashes().items()}},
        timed=True,
    )

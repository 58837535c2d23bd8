"""One step's facts → its row of ``metrics.jsonl`` (interface §7).

A row needs the seconds of all ranks, and those of a step are known to the others only with the next step's first
reduction. So a row is held back by one step: it is then complete, and no collective was spent on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.ledger.spans import Account
from paceline.update.every_step import StepResult

CARRIED = ("wall_s", "deliver_s", "data_s", "bubble_s", "aux_loss")
"""What of a rank's last step travels with the next reduction, in this order: seconds, and the rank's share of the
balance loss. After them one number for each pipeline rank: its busiest expert's load, which is no sum, so that each
has its own place."""


@dataclass(frozen=True)
class RunFacts:
    """What does not change during a run and turns seconds into rates.

    ``flops_per_token`` forward and backward, model FLOPs; ``peak_flops`` of one device in the job's precision, None
    when it is not known (then there is no MFU); ``rows_per_epoch`` in sequences; ``pipeline`` is this rank's place on
    the pp axis and its degree.
    """

    world_size: int
    sequence_length: int
    flops_per_token: float
    peak_flops: float | None
    rows_per_epoch: int
    usd_per_device_hour: float | None = None
    pipeline: tuple[int, int] = (0, 1)


@dataclass
class Telemetry:
    """Builds rows and holds the newest until it is complete. ``emit`` gets each row once; None on other ranks."""

    facts: RunFacts
    attempt: int
    emit: Callable[[dict[str, Any]], None] | None
    now_s: Callable[[], float]
    tokens: float = 0.0
    samples: float = 0.0
    productive_s: float = 0.0
    memory_gib: tuple[float, float] = (0.0, 0.0)
    _held: dict[str, Any] | None = None
    _mine: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._mine = (0.0,) * (len(CARRIED) + self.facts.pipeline[1])

    @property
    def carried(self) -> tuple[float, ...]:
        """This rank's share of what all ranks need to know of the last step, to be summed over them."""
        return self._mine

    def step(self, step: int, rate: float, result: StepResult, accounts: Mapping[Account, float]) -> None:
        """Take a finished step; completes and emits the row of the one before."""
        self.release(result.carried)
        wall_s = sum(accounts.values())
        self._mine = (
            wall_s,
            sum(s for (phase, _), s in accounts.items() if phase == "deliver"),
            accounts.get(("idle", "data"), 0.0),
            accounts.get(("idle", "bubble"), 0.0),
            *self._routing(result),
        )
        self.productive_s += wall_s
        self.tokens += result.counts.valid_tokens
        self.samples += result.counts.rows
        self._held = self._row(step, rate, result, wall_s)

    def _routing(self, result: StepResult) -> tuple[float, ...]:
        """This rank's share of the balance loss, and its stage's load at the stage's place; zeros without experts."""
        place, stages = self.facts.pipeline
        share = stages / self.facts.world_size  # all ranks of a stage say the same
        loads = [0.0] * stages
        loads[place] = (result.load_max or 0.0) * share
        return ((result.aux_loss or 0.0) * share, *loads)

    def late_row(
        self, step: int, rate: float, result: StepResult, wall_s: float, **known: float
    ) -> dict[str, Any]:
        """The row of a step that an earlier attempt finished and did not live to write; ``known`` goes over it.

        What only the ranks of that attempt could add up is not in it: waits, memory, goodput.
        """
        row = self._row(step, rate, result, wall_s) | known
        row["epoch"] = row["samples"] / self.facts.rows_per_epoch
        for unknown in ("memory_gib", "memory_allocated_gib", "checkpoint_stall", "goodput"):
            del row[unknown]
        return row

    def remember_memory(self, reserved_gib: float, allocated_gib: float) -> None:
        """The worst rank's peaks so far; the held row has them too."""
        self.memory_gib = (reserved_gib, allocated_gib)
        if self._held is not None:
            self._held["memory_gib"], self._held["memory_allocated_gib"] = self.memory_gib

    def stalled(self, seconds: float) -> None:
        """Training stood still for ``seconds`` to save after the held row's step."""
        if self._held is not None:
            self._held["checkpoint_stall"] = seconds / (self._held["step_time_s"] + seconds)

    def release(self, carried: tuple[float, ...]) -> None:
        """Complete the held row with the sums over ranks of :data:`CARRIED`, and emit it."""
        row, self._held = self._held, None
        if row is None:
            return
        wall_s, deliver_s, data_s, bubble_s, aux_loss, *loads = carried
        if wall_s > 0:
            row["exposed_communication"] = deliver_s / wall_s
            row["data_wait"] = data_s / wall_s
            if self.facts.pipeline[1] > 1:
                row["bubble"] = bubble_s / wall_s
        if max(loads) > 0:
            row["aux_loss"], row["expert_load_max"] = aux_loss, max(loads)
        if self.emit is not None:
            self.emit(row)

    def _row(self, step: int, rate: float, result: StepResult, wall_s: float) -> dict[str, Any]:
        facts, counts = self.facts, result.counts
        devices = facts.world_size
        tokens_per_s = counts.valid_tokens / wall_s
        flops = tokens_per_s * facts.flops_per_token / devices
        now_s = self.now_s()
        row: dict[str, Any] = {
            "kind": "train",
            "step": step,
            "attempt": self.attempt,
            "time_s": round(now_s, 4),
            "loss": result.loss,
            "grad_norm": result.grad_norm,
            "lr": rate,
            "tokens": round(self.tokens),
            "samples": round(self.samples),
            "epoch": self.samples / facts.rows_per_epoch,
            "step_time_s": wall_s,
            "tokens_per_s": tokens_per_s,
            "tokens_per_s_per_device": tokens_per_s / devices,
            "tflops_per_device": flops / 1e12,
            "memory_gib": self.memory_gib[0],
            "memory_allocated_gib": self.memory_gib[1],
            "checkpoint_stall": 0.0,
            "goodput": min(1.0, self.productive_s / now_s) if now_s > 0 else 1.0,
            "nonfinite": int(not (math.isfinite(result.loss) and math.isfinite(result.grad_norm))),
            "skipped": int(result.verdict is not None and not result.verdict.ends),
            **result.ratios,
        }
        if counts.target_bytes > 0:
            row["bits_per_byte"] = bits_per_byte(result.loss * counts.valid_tokens, counts.target_bytes)
        if facts.peak_flops:
            row["mfu"] = flops / facts.peak_flops
        if facts.usd_per_device_hour is not None:
            row["cost_usd"] = facts.usd_per_device_hour * devices * now_s / 3600
        return row


def bits_per_byte(nats: float, text_bytes: float) -> float:
    """Σ loss in nats over the text's tokens → bits per byte of the text."""
    return nats / math.log(2) / text_bytes

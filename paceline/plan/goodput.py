"""Of the time that a run takes, how much its steps are: saving, failures, what is done again, starting again.

With failures that come at random (exponentially, also while a run starts again), M = seconds between two of all
devices, a save of δ seconds after every τ seconds of steps, and R seconds to start again (J. T. Daly, A higher order
estimate of the optimum checkpoint interval for restart dumps, 2006):

    time / steps = M / τ · e^(R/M) · (e^((τ+δ)/M) − 1)      near 1 + δ/τ + (τ/2 + R) / M for rare failures
    best τ = √(2δM) · (1 + ⅓ √(δ/2M) + δ/18M) − δ,          for δ < 2M, else M
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan.columns import Column, exponential, least, most
from paceline.plan.digits import grouped, three

DEVICE_MTBF_S = 50_700 * 3600.0
"""Of one accelerator with its share of host and network: 419 unexpected stops of 16 384 H100 in 54 days (The Llama 3
Herd of Models, 2024, §3.3.4)."""
HOST_STORE_BYTES_PER_S = (
    4e9  # of one host to and from local disks or a parallel file system: assumed, and said
)
LARGEST = 200.0  # of an exponent: beyond it a run does not come forward
DETECT_S, START_S = (
    60.0,
    120.0,
)  # until a stop is noticed, and ranks are started, connected and compiled: assumed


@dataclass(frozen=True)
class Failures:
    """What stops a run of a job on a cluster.

    Attributes:
        device_mtbf_s: mean time between failures of one device; None = failures are not counted.
        per_host: devices of a host, which write their part of a checkpoint together.
        checkpoint_bytes: of the whole. every_s: between two saves; None = they are not by the clock.
        every_steps: between two saves, in steps; None = by the clock or never.
    """

    device_mtbf_s: float | None
    per_host: int
    checkpoint_bytes: float
    every_s: float | None
    every_steps: float | None = None

    def save_s(self, world: Column) -> Column:
        """Seconds that training stands still for a save."""
        return self.checkpoint_bytes / most(1.0, world / self.per_host) / HOST_STORE_BYTES_PER_S

    def restart_s(self, world: Column) -> Column:
        """Seconds from a failure to the next step: noticed, started, the checkpoint read."""
        return DETECT_S + START_S + self.save_s(world)

    def overhead(self, world: Column, step_s: Column) -> Column:
        """Time of the run over the time of its steps, from 1."""
        interval = self.every_s if self.every_steps is None else self.every_steps * step_s
        if interval is None:
            return 1.0
        save_s = self.save_s(world)
        if self.device_mtbf_s is None:
            return 1.0 + save_s / interval
        apart = self.device_mtbf_s / world
        once = least(LARGEST, (interval + save_s) / apart)
        again = exponential(least(LARGEST, self.restart_s(world) / apart))
        return apart / interval * again * (exponential(once) - 1)

    def assumed(self, world: int) -> str:
        """What it rests on, in words."""
        saves = (
            f"a save of {three(self.checkpoint_bytes / 1e9)} GB stops training for {self.save_s(world):.3g} s"
        )
        if self.device_mtbf_s is None:
            return saves
        apart = self.device_mtbf_s / world / 3600
        hours = grouped(round(self.device_mtbf_s / 3600))
        often = f"a device fails once in {hours} h (cluster.device_mtbf), one of {world} in"
        return f"{often} {apart:.3g} h; {saves}"

    def best_interval_s(self, world: float) -> float | None:
        """Between two saves, where saving and losing cost the same."""
        if self.device_mtbf_s is None:
            return None
        save_s, apart = float(self.save_s(world)), self.device_mtbf_s / world
        if save_s >= 2 * apart:
            return apart
        half = save_s / (2 * apart)
        return (2 * save_s * apart) ** 0.5 * (1 + half**0.5 / 3 + half / 9) - save_s
